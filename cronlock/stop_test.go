package cronlock_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/robfig/cron/v3"
)

// Stop is for good, whenever and however often it is called, and what comes afterwards says why it does not run.
func TestStoppedForGood(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.add(t, "*/10 * * * * *", "job", time.Millisecond)
		r.cron.Stop() // as if it had not been started
		var none context.Context
		if err := r.guard.Stop(none); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("without a context: %v", err)
		}
		for range 2 {
			if err := r.guard.Stop(t.Context()); err != nil {
				t.Errorf("got %v", err)
			}
		}
		r.cron.Start()
		pass(11 * time.Second)
		if late := j.of("late"); j.total() > 0 || len(late) != 1 || !errors.Is(late[0].Err, holdfast.ErrClosed) {
			t.Errorf("%v", j)
		}
	})
}

// A tick that waits, for the lock or for Redis, ends with Stop, and says that it was that.
func TestStoppedWhileATickWaits(t *testing.T) {
	for name, held := range map[string]bool{"for the lock": true, "for Redis": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j, cronlock.WithBusy(cronlock.Wait(time.Minute)))
				r.add(t, "* * * * *", "job", time.Millisecond)
				tick := time.Now().Truncate(time.Minute).Add(time.Minute)
				pass(time.Until(tick.Add(-time.Millisecond)))
				if held {
					lock, err := r.locker.Acquire(context.Background(), "cron:job")
					if err != nil {
						t.Fatal(err)
					}
					defer lock.Release(context.Background())
				} else {
					r.link.Refuse(errors.New("no route"))
					r.link.Reset()
					defer r.link.Refuse(nil)
				}
				pass(2 * time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.guard.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				late := j.of("late")
				if j.total() > 0 || len(j.of("skipped")) > 0 || len(late) != 1 || !errors.Is(late[0].Err, holdfast.ErrClosed) || !late[0].Tick.Equal(tick) {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// A cron that is stopped and started again, without the Guard, goes on.
func TestCronStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.add(t, "*/10 * * * * *", "job", 15*time.Second)
		pass(11 * time.Second)
		r.cron.Stop()
		pass(20 * time.Second)
		r.cron.Start()
		pass(10 * time.Second)
		if len(j.of("ran")) != 1 || j.total() != 2 || len(j.of("failed")) > 0 {
			t.Errorf("%v", j)
		}
	})
}

// Stop does not wait beyond its context for a job that is none of the Guard's.
func TestStopBesideAForeignJob(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, newJournal())
		foreign := make(chan struct{})
		if _, err := r.cron.AddFunc("*/10 * * * * *", func() { <-foreign }); err != nil {
			t.Fatal(err)
		}
		pass(11 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := r.guard.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		close(foreign)
	})
}

// Jobs may change the cron that runs them.
func TestJobsThatAddAndRemove(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		var id atomic.Int64
		first, err := r.guard.AddFunc("*/10 * * * * *", "first", func(ctx context.Context) error {
			defer j.begin(ctx, "first")()
			r.cron.Remove(cron.EntryID(id.Load()))
			_, err := r.guard.AddFunc("* * * * * *", "second", r.work(0)) // due at once
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		id.Store(int64(first))
		pass(10*time.Second + 2500*time.Millisecond)
		if j.total() != 3 || len(j.ticks()) != 3 || len(j.of("failed")) > 0 {
			t.Errorf("%v", j)
		}
	})
}

// However a job ends, it is told of, the lock is released and the next tick runs; SkipIfStillRunning and Recover in the
// wrong order would end it all at the first panic, and are not needed.
func TestJobsThatDoNotReturn(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		for chain, wrappers := range map[string][]cron.JobWrapper{
			"recover":          {cron.Recover(cron.DiscardLogger)},
			"skip and recover": {cron.SkipIfStillRunning(cron.DiscardLogger), cron.Recover(cron.DiscardLogger)},
			"recover, delay":   {cron.Recover(cron.DiscardLogger), cron.DelayIfStillRunning(cron.DiscardLogger)},
		} {
			if name == "Goexit" && chain == "skip and recover" {
				continue // cron never runs it again
			}
			t.Run(name+" in "+chain, func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					j := newJournal()
					r := newReplica(t, b, j)
					r.rechain(wrappers...)
					if _, err := r.guard.AddFunc("*/10 * * * * *", "job", func(ctx context.Context) error {
						defer j.begin(ctx, r.name)()
						end()
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					pass(31 * time.Second)
					failed := j.of("failed")
					if j.total() != 3 || len(failed) != 3 || failed[0].Err == nil || failed[0].Token == 0 || len(j.of("ran")) > 0 {
						t.Errorf("%v", j)
					}
					if state, err := r.locker.Inspect(t.Context(), "cron:job"); err != nil || state.Held {
						t.Errorf("left: %+v, %v", state, err)
					}
				})
			})
		}
	}
}

// A hook or a handler that panics leaves no lock behind either, and keeps Stop from nothing.
func TestHooksThatPanic(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, newJournal())
		r.rechain(cron.Recover(cron.DiscardLogger))
		boom := func(cronlock.Event) { panic("boom") }
		var runs atomic.Int32
		if _, err := r.guard.AddFunc("*/10 * * * * *", "job", func(context.Context) error {
			if runs.Add(1)%2 == 0 {
				return errors.New("fails")
			}
			return nil
		}, cronlock.WithTrace(&cronlock.Trace{Ran: boom, Failed: boom})); err != nil {
			t.Fatal(err)
		}
		pass(41 * time.Second)
		if state, err := r.locker.Inspect(t.Context(), "cron:job"); err != nil || state.Held || runs.Load() != 4 {
			t.Errorf("%d runs, left: %+v, %v", runs.Load(), state, err)
		}
	})
}

// What a job has left behind with its context, Stop ends as well.
func TestContextsEndWithTheGuard(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, newJournal(), cronlock.WithBusy(cronlock.Allow()))
		var left context.Context
		if _, err := r.guard.AddFunc("*/10 * * * * *", "job", func(ctx context.Context) error {
			left = ctx
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		pass(11 * time.Second)
		before := left.Err()
		r.stop(t)
		if before != nil || !errors.Is(context.Cause(left), holdfast.ErrClosed) {
			t.Errorf("got %v before and %v after", before, context.Cause(left))
		}
	})
}
