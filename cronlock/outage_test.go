package cronlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// on has the first script that names a key judged. A claim names the mark alone, an acquisition the lock first.
func (r *replica) on(key string, judge func() servertest.Verdict) {
	var once atomic.Bool
	r.link.OnCommand(func(args []string) servertest.Verdict {
		if len(args) > 3 && strings.HasPrefix(args[0], "eval") && args[3] == key && !once.Swap(true) {
			return judge()
		}
		return servertest.Pass
	})
}

// Redis goes away between the claim and the lock. Nobody else can have the tick any more, so the lock is asked for until
// the bound, and no longer.
func TestRedisAwayAfterTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		away time.Duration
		opts []cronlock.Option
		runs int
		hook string
	}{
		"for a while":        {20 * time.Second, nil, 1, "ran"},
		"waiting":            {20 * time.Second, []cronlock.Option{cronlock.WithBusy(cronlock.Wait(time.Second))}, 1, "ran"},
		"for too long":       {40 * time.Second, nil, 0, "late"},
		"open, for a while":  {20 * time.Second, []cronlock.Option{cronlock.WithFailOpen()}, 1, "ran"},
		"open, for too long": {40 * time.Second, []cronlock.Option{cronlock.WithFailOpen()}, 1, "unlocked"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j, c.opts...)
				r.add(t, "* * * * *", "job", time.Millisecond)
				r.on("cron:job", func() servertest.Verdict {
					r.link.Refuse(errors.New("no route"))
					time.AfterFunc(c.away, func() { r.link.Refuse(nil) })
					return servertest.LoseRequestAndClose
				})
				tick := time.Now().Truncate(time.Minute).Add(time.Minute)
				pass(time.Until(tick.Add(50 * time.Second)))
				if got := j.of(c.hook); j.total() != c.runs || len(got) != 1 || c.hook == "late" && !errors.Is(got[0].Err, holdfast.ErrUnavailable) {
					t.Errorf("%d runs, %v", j.total(), j)
				}
			})
		})
	}
}

// A replica that is paused after its claim does not begin later than it may, and leaves no lock behind.
func TestPausedAfterTheClaim(t *testing.T) {
	for pause, hook := range map[time.Duration]string{29 * time.Second: "ran", 31 * time.Second: "late"} {
		t.Run(pause.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j, cronlock.WithLock(holdfast.WithTrace(&holdfast.Trace{
					Acquired: func(holdfast.Event) { time.Sleep(pause) },
				})))
				r.add(t, "* * * * *", "job", time.Millisecond)
				pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 50*time.Second)))
				if len(j.of(hook)) != 1 || (j.total() == 1) != (hook == "ran") {
					t.Errorf("%v", j)
				}
				if state, err := r.locker.Inspect(t.Context(), "cron:job"); err != nil || state.Held {
					t.Errorf("left: %+v, %v", state, err)
				}
			})
		})
	}
}

// The answers to claims get lost: each is asked for again as the same claim, and the tick runs once.
func TestLostAnswersToClaims(t *testing.T) {
	for name, opts := range map[string][]cronlock.Option{"closed": nil, "open": {cronlock.WithFailOpen()}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 2 {
					r := newReplica(t, b, j, opts...)
					r.add(t, "* * * * *", "job", time.Millisecond)
					var lost atomic.Int32
					r.link.OnCommand(func(args []string) servertest.Verdict {
						if len(args) > 3 && args[3] == "{cron:job}:~mark" && lost.Add(1)%7 > 0 {
							return servertest.LoseReplyAndClose
						}
						return servertest.Pass
					})
				}
				pass(10*time.Minute + 40*time.Second)
				if j.total() != 10 || len(j.ticks()) != 10 || len(j.of("late"))+len(j.of("unlocked")) > 0 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// A Redis that has lost everything goes on with the next tick.
func TestRedisThatForgets(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for range 3 {
			newReplica(t, b, j).add(t, "*/10 * * * * *", "job", time.Millisecond)
		}
		pass(5 * time.Second)
		for range 10 {
			pass(10 * time.Second)
			b.Restart()
		}
		if j.total() != 10 || len(j.ticks()) != 10 {
			t.Errorf("%v", j)
		}
	})
}

// A replica that is stopped while it asks gives the tick up, also one that would run it without the lock in the end.
func TestStoppedWhileRedisIsAway(t *testing.T) {
	for _, key := range []string{"{cron:job}:~mark", "cron:job"} {
		t.Run(key, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j, cronlock.WithFailOpen())
				r.add(t, "* * * * *", "job", time.Millisecond)
				r.on(key, func() servertest.Verdict {
					r.link.Refuse(errors.New("no route"))
					return servertest.LoseRequestAndClose
				})
				pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 10*time.Second)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				if err := r.guard.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second {
					t.Errorf("got %v after %v", err, time.Since(began))
				}
				if j.total() > 0 || len(j.of("late")) != 1 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// What Redis refuses for good is not asked for again and again.
func TestRefusedForGood(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.add(t, "* * * * *", "job", time.Millisecond)
		if err := r.rdb.RPush(t.Context(), "{cron:job}:~mark", "of another kind").Err(); err != nil {
			t.Fatal(err)
		}
		pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
		if late := j.of("late"); j.total() > 0 || len(late) != 1 || !errors.Is(late[0].Err, holdfast.ErrUnavailable) {
			t.Errorf("%v", j)
		}
	})
}
