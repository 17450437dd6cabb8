package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/robfig/cron/v3"
)

// Each tick runs once, on one of the replicas, with its nominal time, its name and a token.
func TestOneReplicaRunsEachTick(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for range 3 {
			r := newReplica(t, b, j)
			work := r.work(time.Millisecond)
			_, err := r.guard.AddFunc("*/10 * * * * *", "invoices", func(ctx context.Context) error {
				held := holdfast.Held(ctx)
				name, tick, ok := cronlock.Tick(ctx)
				if !ok || name != "invoices" || len(held) != 1 || held[0].Key() != "cron:invoices" || held[0].Token() <= 0 {
					t.Errorf("job %q with %v", name, held)
				}
				if tick.Second()%10 != 0 || tick.Nanosecond() != 0 || time.Since(tick) > time.Second {
					t.Errorf("tick %v at %v", tick, time.Now())
				}
				return work(ctx)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		pass(100*time.Second + time.Second)
		if len(j.ticks()) != 10 || j.total() != 10 || len(j.of("ran")) != 10 || len(j.of("skipped")) != 20 {
			t.Errorf("%v", j)
		}
		if e := j.of("ran")[0]; e.Name != "invoices" || e.Token <= 0 || e.Elapsed < time.Millisecond {
			t.Errorf("got %+v", e)
		}
	})
}

// A job that takes longer than its period.
func TestOverlap(t *testing.T) {
	for name, c := range map[string]struct {
		policy cronlock.Policy
		runs   int // of the first ten ticks
		most   int
	}{
		"skip":  {cronlock.Skip(), 4, 1},
		"wait":  {cronlock.Wait(time.Hour), 4, 1},
		"allow": {cronlock.Allow(), 10, 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 3 {
					newReplica(t, b, j, cronlock.WithBusy(c.policy)).add(t, "*/10 * * * * *", "long", 25*time.Second)
				}
				pass(101 * time.Second)
				if j.total() != c.runs || j.peak() != c.most {
					t.Errorf("%d runs, %d at a time; want %d and %d: %v", j.total(), j.peak(), c.runs, c.most, j)
				}
				for _, e := range j.of("skipped") {
					if e.Err != nil && (!errors.Is(e.Err, holdfast.ErrNotAcquired) || e.Holder == "") {
						t.Errorf("got %+v", e)
					}
				}
			})
		})
	}
}

// Waiting for an earlier run, within the lateness, is longer than what a dead holder's lease could last.
func TestWaitForAnEarlierRun(t *testing.T) {
	for name, c := range map[string]struct {
		policy cronlock.Policy
		runs   int
	}{"skip": {cronlock.Skip(), 5}, "wait": {cronlock.Wait(20 * time.Second), 6}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 2 {
					r := newReplica(t, b, j, cronlock.WithBusy(c.policy), cronlock.WithLateness(30*time.Second))
					r.add(t, "*/10 * * * * *", "long", 18*time.Second)
				}
				pass(101 * time.Second)
				if j.total() != c.runs || j.peak() != 1 {
					t.Errorf("%d runs, %d at a time, want %d: %v", j.total(), j.peak(), c.runs, j)
				}
			})
		})
	}
}

// Wait waits for its time, and Skip for what is left of the lease, of a holder that died as of one that lives.
func TestWaitForADeadHolder(t *testing.T) {
	for name, c := range map[string]struct {
		policy cronlock.Policy
		took   time.Duration
		ran    int
	}{
		"no time": {cronlock.Wait(0), 0, 0},
		"skip":    {cronlock.Skip(), 3 * time.Second, 1},
		"a bit":   {cronlock.Wait(time.Second), time.Second, 0},
		"a while": {cronlock.Wait(4 * time.Second), 3 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j, cronlock.WithBusy(c.policy))
				r.add(t, "* * * * *", "job", time.Millisecond)
				tick := time.Now().Truncate(time.Minute).Add(time.Minute)
				pass(time.Until(tick.Add(-time.Second)))
				// Of a process that died: nobody renews it.
				if err := r.rdb.Set(context.Background(), "cron:job", "dead", 4*time.Second).Err(); err != nil {
					t.Fatal(err)
				}
				pass(time.Second + c.took/2)
				if want := c.took == 0; want != (len(j.of("skipped")) == 1) || j.total() > 0 {
					t.Errorf("after %v: %v", c.took/2, j)
				}
				pass(c.took/2 + time.Second)
				if j.total() != c.ran || len(j.of("skipped")) != 1-c.ran {
					t.Errorf("%d runs, want %d: %v", j.total(), c.ran, j)
				}
			})
		})
	}
}

func TestWaitForALiveHolder(t *testing.T) {
	for name, c := range map[string]struct {
		policy cronlock.Policy
		want   time.Duration
	}{
		"skip":    {cronlock.Skip(), 12 * time.Second}, // as long as its lease had left at first, though it is renewed
		"shorter": {cronlock.Wait(8 * time.Second), 8 * time.Second},
		"longer":  {cronlock.Wait(14 * time.Second), 14 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				var skipped time.Time
				r := newReplica(t, b, j, cronlock.WithBusy(c.policy), cronlock.WithTrace(&cronlock.Trace{
					Skipped: func(cronlock.Event) { skipped = time.Now() },
				}))
				r.add(t, "* * * * *", "job", time.Millisecond)
				tick := time.Now().Truncate(time.Minute).Add(time.Minute)
				pass(time.Until(tick.Add(-time.Millisecond)))
				lock, err := r.locker.Acquire(context.Background(), "cron:job", holdfast.WithTTL(12*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				pass(40 * time.Second)
				if took := skipped.Sub(tick); j.total() != 0 || took < c.want-100*time.Millisecond || took > c.want+100*time.Millisecond {
					t.Errorf("skipped after %v, want %v: %v", took, c.want, j)
				}
				if err := lock.Release(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The replica that has a tick dies before it is done: the next tick runs elsewhere.
func TestNextTickAfterACrash(t *testing.T) {
	type crash struct {
		spec  string
		after time.Duration // in the run
	}
	for _, c := range []crash{
		{"* * * * * *", 0}, {"* * * * * *", 900 * time.Millisecond}, {"*/10 * * * * *", 0}, {"*/10 * * * * *", 9 * time.Second},
		{"* * * * *", 0}, {"* * * * *", 59 * time.Second},
	} {
		spec := c.spec
		t.Run(fmt.Sprint(spec, " after ", c.after), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				victim := newReplica(t, b, j)
				crashed := make(chan struct{})
				_, err := victim.guard.AddFunc(spec, "job", func(ctx context.Context) error {
					defer j.begin(ctx, victim.name)()
					time.Sleep(c.after)
					victim.link.Refuse(errors.New("crashed"))
					victim.link.Reset()
					close(crashed)
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				<-crashed
				victim.cron.Stop()
				heir := newReplica(t, b, j)
				heir.add(t, spec, "job", time.Millisecond)
				s, _ := parser.Parse(spec)
				next := s.Next(time.Now().UTC())
				pass(time.Until(s.Next(next)))
				if got := j.ranOn(next); len(got) != 1 || got[0] != heir.name {
					t.Errorf("the next tick ran on %v, %v", got, j)
				}
			})
		})
	}
}

func TestRedisAway(t *testing.T) {
	for name, c := range map[string]struct {
		away time.Duration // from the tick on
		opts []cronlock.Option
		runs int
		hook string
	}{
		"for a while":         {20 * time.Second, nil, 1, "ran"},
		"for too long":        {40 * time.Second, nil, 0, "late"},
		"for less than that":  {40 * time.Second, []cronlock.Option{cronlock.WithLateness(50 * time.Second)}, 1, "ran"},
		"open, for a while":   {20 * time.Second, []cronlock.Option{cronlock.WithFailOpen()}, 1, "ran"},
		"open, for too long":  {40 * time.Second, []cronlock.Option{cronlock.WithFailOpen()}, 1, "unlocked"},
		"allow, for a while":  {20 * time.Second, []cronlock.Option{cronlock.WithBusy(cronlock.Allow())}, 1, "ran"},
		"allow, for too long": {40 * time.Second, []cronlock.Option{cronlock.WithBusy(cronlock.Allow())}, 0, "late"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				var handled []error
				handle := func(e cronlock.Event) { handled = append(handled, e.Err) }
				opts := append(c.opts, cronlock.WithTrace(&cronlock.Trace{Late: handle, Unlocked: handle}))
				r := newReplica(t, b, j, opts...)
				r.add(t, "* * * * *", "job", time.Millisecond)
				r.link.Refuse(errors.New("no route"))
				pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + c.away)))
				r.link.Refuse(nil)
				pass(15 * time.Second)
				if j.total() != c.runs || len(j.of(c.hook)) != 1 {
					t.Errorf("%d runs, %v", j.total(), j)
				}
				if c.hook != "ran" && (len(handled) != 1 || !errors.Is(handled[0], holdfast.ErrUnavailable)) {
					t.Errorf("the hook got %v", handled)
				}
			})
		})
	}
}

// Stop waits; and when it has waited long enough, ends the contexts of the jobs.
func TestStop(t *testing.T) {
	for name, patience := range map[string]time.Duration{"patient": time.Minute, "impatient": time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j)
				r.add(t, "* * * * *", "job", 20*time.Second)
				pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				began := time.Now()
				err := r.guard.Stop(ctx)
				took := time.Since(began)
				if patience == time.Minute {
					if err != nil || took != 19*time.Second || len(j.of("ran")) != 1 {
						t.Errorf("got %v after %v, %v", err, took, j)
					}
				} else if failed := j.of("failed"); !errors.Is(err, context.DeadlineExceeded) || took != time.Second ||
					len(failed) != 1 || !errors.Is(failed[0].Err, holdfast.ErrClosed) {
					t.Errorf("got %v after %v, %v", err, took, j)
				}
				if err := r.guard.RunNow(context.Background(), "job"); !errors.Is(err, holdfast.ErrClosed) {
					t.Errorf("RunNow after Stop: %v", err)
				}
			})
		})
	}
}

// Stop waits for what RunNow runs, too.
func TestStopDuringRunNow(t *testing.T) {
	for name, patience := range map[string]time.Duration{"patient": time.Minute, "impatient": time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b, newJournal())
				r.add(t, "@yearly", "job", 20*time.Second)
				result := make(chan error, 1)
				go func() { result <- r.guard.RunNow(context.Background(), "job") }()
				pass(time.Second)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				began := time.Now()
				stopped, ran := r.guard.Stop(ctx), <-result
				if took := time.Since(began); patience == time.Minute && (stopped != nil || ran != nil || took != 19*time.Second) ||
					patience == time.Second && (!errors.Is(stopped, context.DeadlineExceeded) || !errors.Is(ran, holdfast.ErrClosed) || took != time.Second) {
					t.Errorf("got %v and %v after %v", stopped, ran, took)
				}
			})
		})
	}
}

func TestRunNow(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r, other := newReplica(t, b, j), newReplica(t, b, j)
		errJob := errors.New("the job failed")
		for _, r := range []*replica{r, other} {
			r.add(t, "* * * * *", "job", 10*time.Second)
			if _, err := r.guard.AddFunc("@yearly", "fails", func(context.Context) error { return errJob }); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Until(time.Now().Truncate(time.Minute).Add(90 * time.Second)))
		if err := r.guard.RunNow(context.Background(), "job"); err != nil || j.total() != 2 {
			t.Errorf("got %v, %d runs", err, j.total())
		}
		pass(25 * time.Second) // into the run of the next tick, which is its own
		if j.total() != 3 {
			t.Errorf("%d runs", j.total())
		}
		if err := other.guard.RunNow(context.Background(), "job"); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("beside a run: %v", err)
		}
		if err := r.guard.RunNow(context.Background(), "fails"); !errors.Is(err, errJob) {
			t.Errorf("got %v", err)
		}
		if err := r.guard.RunNow(context.Background(), "nothing"); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		pass(20 * time.Second)
		if err := r.guard.RunNow(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that ends: %v", err)
		}
	})
}

func TestLostLockEndsTheJob(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.add(t, "* * * * *", "job", 50*time.Second)
		pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
		if err := r.rdb.Del(context.Background(), "cron:job").Err(); err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Second)
		if lost := j.of("lost"); len(lost) != 1 || !errors.Is(lost[0].Err, holdfast.ErrLost) || len(j.of("failed")) != 1 {
			t.Errorf("%v", j)
		}
		if _, err := r.guard.AddFunc("@yearly", "other", func(ctx context.Context) error {
			return r.rdb.Del(ctx, "cron:other").Err() // and does not mind
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.guard.RunNow(context.Background(), "other"); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("RunNow: %v", err)
		}
		if failed := j.of("failed"); len(failed) != 1 || !errors.Is(failed[0].Err, holdfast.ErrLost) {
			t.Errorf("%v", j)
		}
	})
}

// A Locker that is shut down first gives up the locks of jobs when it loses patience.
func TestLockerShutDownFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.add(t, "* * * * *", "job", 20*time.Second)
		pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.locker.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
		pass(time.Second)
		if lost := j.of("lost"); len(lost) != 1 || !errors.Is(lost[0].Err, holdfast.ErrLost) || !errors.Is(lost[0].Err, holdfast.ErrClosed) {
			t.Errorf("%v", j)
		}
		pass(time.Minute)
		if late := j.of("late"); len(late) != 1 || !errors.Is(late[0].Err, holdfast.ErrClosed) {
			t.Errorf("the next tick: %v", j)
		}
	})
}

// Replicas that agree keep what they agree on, at little cost; nothing is left when they are gone.
func TestFingerprintsExpire(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		var all []*replica
		for range 2 {
			r := newReplica(t, b, j)
			r.add(t, "*/10 * * * * *", "job", time.Millisecond)
			all = append(all, r)
		}
		pass(10 * time.Second)
		for range 10 {
			pass(time.Minute)
			if ttl := b.Redis.TTL("cronlock:spec:cron:job"); ttl < time.Minute {
				t.Errorf("the fingerprint is gone in %v: nobody keeps it", ttl)
			}
		}
		if n := b.Commands()["set"] + b.Commands()["setnx"]; n > 25 {
			t.Errorf("%d comparisons in ten minutes, want one a minute and replica", n)
		}
		for _, r := range all {
			r.cron.Stop()
		}
		pass(2 * time.Hour)
		if keys := b.Redis.Keys(); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestDifferentSpecsAreReported(t *testing.T) {
	zone := time.FixedZone("elsewhere", 1800)
	for name, c := range map[string]struct {
		one, other string
		zone       *time.Location
		differ     bool
		after      time.Duration
	}{
		"the same":          {"*/10 * * * * *", "0,10,20,30,40,50 * * * * *", time.UTC, false, 5 * time.Minute},
		"other seconds":     {"*/10 * * * * *", "5/10 * * * * *", time.UTC, true, 2 * time.Minute},
		"other periods":     {"@every 10s", "@every 25s", time.UTC, true, 2 * time.Minute},
		"another time zone": {"0 30 * * * *", "0 30 * * * *", zone, true, 3 * time.Hour},
		"only in name":      {"30 * * * * *", "30 * * * * *", zone, false, 5 * time.Minute},
		"CRON_TZ":           {"CRON_TZ=Asia/Tokyo 0 0 4 * * *", "0 0 19 * * *", time.UTC, false, 25 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				one, other := newReplica(t, b, j), newReplica(t, b, j)
				other.cron.Stop()
				other.cron = cron.New(cron.WithParser(parser), cron.WithLocation(c.zone))
				other.guard = cronlock.New(other.locker, other.cron, cronlock.WithTrace(j.trace()))
				other.cron.Start()
				one.add(t, c.one, "job", time.Millisecond)
				other.add(t, c.other, "job", time.Millisecond)
				pass(c.after)
				if got := len(j.of("differs")) > 0; got != c.differ {
					t.Errorf("reported: %v", j.of("differs"))
				}
			})
		})
	}
}
