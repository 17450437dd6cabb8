package cronlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// rechain gives the replica a cron with other wrappers.
func (r *replica) rechain(wrappers ...cron.JobWrapper) {
	r.cron.Stop()
	r.cron = cron.New(cron.WithParser(parser), cron.WithLocation(time.UTC), cron.WithLogger(cron.DiscardLogger), cron.WithChain(wrappers...))
	r.guard = cronlock.New(r.locker, r.cron, cronlock.WithTrace(r.j.trace()))
	r.cron.Start()
}

// Wherever the job is in the user's chain, it finds its tick.
func TestJobFindsItsTickInAnyChain(t *testing.T) {
	log := cron.DiscardLogger
	for name, wrappers := range map[string][]cron.JobWrapper{
		"none":                 nil,
		"recover":              {cron.Recover(log)},
		"recover and skip":     {cron.Recover(log), cron.SkipIfStillRunning(log)},
		"skip and recover":     {cron.SkipIfStillRunning(log), cron.Recover(log)},
		"delay":                {cron.DelayIfStillRunning(log)},
		"one of the user's":    {func(j cron.Job) cron.Job { return cron.FuncJob(j.Run) }},
		"and one that is slow": {func(j cron.Job) cron.Job { return cron.FuncJob(func() { time.Sleep(2 * time.Second); j.Run() }) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 2 {
					r := newReplica(t, b, j)
					r.rechain(wrappers...)
					r.cron.Schedule(cron.Every(7*time.Second), cron.FuncJob(func() {})) // not comparable
					r.add(t, "*/10 * * * * *", "a", time.Millisecond)
					r.add(t, "*/10 * * * * *", "b", time.Millisecond)
					c, err := r.guard.Wrap("c", cron.FuncJob(func() {}))
					if err != nil {
						t.Fatal(err)
					}
					if _, err := r.cron.AddJob("*/10 * * * * *", c); err != nil {
						t.Fatal(err)
					}
				}
				pass(105 * time.Second)
				if len(j.ticks()) != 10 || j.total() != 20 || len(j.of("ran")) != 30 || len(j.of("failed"))+len(j.of("late")) > 0 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// Delayed past the next tick, a run takes that one for its own: one of the two is left out, and none runs twice.
func TestDelayedPastTheNextTick(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.rechain(func(inner cron.Job) cron.Job {
			return cron.FuncJob(func() { time.Sleep(12 * time.Second); inner.Run() })
		})
		r.add(t, "*/10 * * * * *", "job", time.Millisecond)
		pass(101 * time.Second)
		for _, at := range j.ticks() {
			if runs := j.ranOn(at); len(runs) != 1 {
				t.Errorf("tick %v ran %d times", at, len(runs))
			}
		}
		if n := j.total(); n < 7 || n > 8 {
			t.Errorf("%d runs", n)
		}
	})
}

// A panic releases the lock and goes on, to the user's Recover.
func TestPanicReleases(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		var recovered atomic.Int32
		r.rechain(func(inner cron.Job) cron.Job {
			return cron.FuncJob(func() {
				defer func() {
					if recover() != nil {
						recovered.Add(1)
					}
				}()
				inner.Run()
			})
		})
		if _, err := r.guard.AddFunc("*/10 * * * * *", "job", func(context.Context) error { panic("boom") }); err != nil {
			t.Fatal(err)
		}
		pass(31 * time.Second)
		state, err := r.locker.Inspect(context.Background(), "cron:job")
		if recovered.Load() != 3 || err != nil || state.Held {
			t.Errorf("%d panics, %+v, %v", recovered.Load(), state, err)
		}
	})
}

// What cannot work says so, and runs nothing.
func TestJobsInTheWrongPlace(t *testing.T) {
	for name, c := range map[string]struct {
		add  func(r *replica, work func(context.Context) error)
		want string
	}{
		"wrapped": {func(r *replica, work func(context.Context) error) {
			_, _ = r.cron.AddJob("*/10 * * * * *", cron.NewChain(cron.Recover(cron.DiscardLogger)).Then(r.job("job", work)))
		}, "is in no entry"},
		"as a function": {func(r *replica, work func(context.Context) error) {
			_, _ = r.cron.AddFunc("*/10 * * * * *", r.job("job", work).Run)
		}, "is in no entry"},
		"in another cron": {func(r *replica, work func(context.Context) error) {
			other := cron.New(cron.WithParser(parser))
			_, _ = other.AddJob("*/10 * * * * *", r.job("job", work))
			other.Start()
			time.AfterFunc(25*time.Second, func() { other.Stop() })
		}, "is in no entry"},
		"twice": {func(r *replica, work func(context.Context) error) {
			j := r.job("job", work)
			_, _ = r.cron.AddJob("*/10 * * * * *", j)
			_, _ = r.cron.AddJob("*/20 * * * * *", j)
		}, "is in 2 entries"},
		"two of a name": {func(r *replica, work func(context.Context) error) {
			one, two := r.job("job", work), r.job("job", work)
			_, _ = r.cron.AddJob("*/10 * * * * *", one)
			_, _ = r.cron.AddJob("*/10 * * * * *", two)
		}, "two entries"},
		"by hand": {func(r *replica, work func(context.Context) error) {
			id, _ := r.cron.AddJob("@yearly", r.job("job", work))
			r.cron.Entry(id).WrappedJob.Run()
		}, "see RunNow"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j)
				c.add(r, r.work(time.Millisecond))
				pass(21 * time.Second)
				failed := j.of("failed")
				if j.total() > 0 || len(failed) == 0 || !errors.Is(failed[0].Err, holdfast.ErrInvalid) || !strings.Contains(failed[0].Err.Error(), c.want) {
					t.Errorf("%d runs, %v", j.total(), j)
				}
			})
		})
	}
}

// Run by hand, a job has the tick that its replica had last, which is used up.
func TestRunByHandUsesNoTickTwice(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		id := r.add(t, "*/10 * * * * *", "job", time.Millisecond)
		pass(11 * time.Second)
		r.cron.Entry(id).WrappedJob.Run()
		if j.total() != 1 || len(j.of("skipped")) != 1 {
			t.Errorf("%d runs, %v", j.total(), j)
		}
	})
}

func TestRemoveAndAddAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		id := r.add(t, "*/10 * * * * *", "job", time.Millisecond)
		if _, err := r.guard.AddFunc("* * * * *", "job", r.work(0)); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("a name twice: %v", err)
		}
		pass(25 * time.Second)
		r.cron.Remove(id)
		pass(30 * time.Second)
		r.add(t, "*/10 * * * * *", "job", time.Millisecond)
		pass(21 * time.Second)
		if j.total() != 4 || len(j.of("failed")) > 0 {
			t.Errorf("%d runs, %v", j.total(), j)
		}
	})
}

func TestMistakesAtRegistration(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	c := cron.New()
	g := cronlock.New(l, c)
	work := func(context.Context) error { return nil }
	for name, add := range map[string]func() (any, error){
		"bad spec":    func() (any, error) { return g.AddFunc("61 * * * *", "job", work) },
		"no spec":     func() (any, error) { return g.AddFunc("", "job", work) },
		"no name":     func() (any, error) { return g.AddFunc("@daily", "", work) },
		"nil job":     func() (any, error) { return g.AddFunc("@daily", "job", nil) },
		"nil option":  func() (any, error) { return g.AddFunc("@daily", "job", work, nil) },
		"no lateness": func() (any, error) { return g.AddFunc("@daily", "job", work, cronlock.WithLateness(0)) },
		"negative wait": func() (any, error) {
			return g.AddFunc("@daily", "job", work, cronlock.WithBusy(cronlock.Wait(-1)))
		},
		"negative window": func() (any, error) {
			return g.AddFunc("@daily", "job", work, cronlock.WithClaim(tick.WithWindow(-1, 0)))
		},
		"nil trace": func() (any, error) { return g.AddFunc("@daily", "job", work, cronlock.WithTrace(nil)) },
		"re-entry": func() (any, error) {
			return g.AddFunc("@daily", "job", work, cronlock.WithLock(holdfast.WithReentryID("id")))
		},
		"contradiction": func() (any, error) {
			return g.AddFunc("@daily", "job", work, cronlock.WithLock(holdfast.WithTTL(time.Hour), holdfast.WithMaxHold(time.Second)))
		},
	} {
		if _, err := add(); err == nil || !strings.Contains(name, "spec") && !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	short, err := holdfast.New(rdb, holdfast.WithTTL(time.Second), holdfast.WithMaxHold(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	cronlock.New(short, cron.New(), cronlock.WithLock(holdfast.WithMaxHold(time.Minute)))
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "half of the period") {
				t.Errorf("the Locker's WithMaxHold is below the TTL that the Guard chooses: got %v", err)
			}
		}()
		cronlock.New(short, cron.New())
	}()
	if err := g.RunNow(t.Context(), "job"); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("RunNow of a job that was not added: %v", err)
	}
	if n := len(c.Entries()); n > 0 {
		t.Errorf("%d entries were added all the same", n)
	}
	if _, err := g.AddFunc("@daily", "job", work); err != nil {
		t.Errorf("after the mistakes: %v", err)
	}
	for name, add := range map[string]func() (cron.Job, error){
		"nil job":      func() (cron.Job, error) { return g.Wrap("x", nil) },
		"nil FuncJob":  func() (cron.Job, error) { return g.Wrap("x", cron.FuncJob(nil)) },
		"nil func":     func() (cron.Job, error) { return g.Job("x", nil) },
		"no name":      func() (cron.Job, error) { return g.Job("", work) },
		"a name again": func() (cron.Job, error) { return g.Job("job", work) },
	} {
		if j, err := add(); j != nil || !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "cronlock: ") {
			t.Errorf("%s: got %v, %v", name, j, err)
		}
	}
	contradiction := cronlock.WithLock(holdfast.WithTTL(time.Hour), holdfast.WithMaxHold(time.Second))
	for name, c := range map[string]struct {
		f    func()
		says []string
	}{
		"no locker":     {func() { cronlock.New(nil, c) }, []string{"no Locker"}},
		"no cron":       {func() { cronlock.New(l, nil) }, []string{"no cron"}},
		"a nil cron":    {func() { cronlock.New(l, (*cron.Cron)(nil)) }, []string{"no cron"}},
		"not a cron":    {func() { cronlock.New(l, struct{ cronlock.Cron }{c}) }, []string{"lacks a method", "Entries"}},
		"nil option":    {func() { cronlock.New(l, c, nil) }, []string{"nil option"}},
		"contradiction": {func() { cronlock.New(l, c, contradiction) }, []string{"WithMaxHold(1s)"}},
		"all at once": {func() {
			cronlock.New(nil, nil, nil, cronlock.WithLateness(-1), cronlock.WithBusy(cronlock.Wait(-1)), cronlock.WithTrace(nil))
		}, []string{"no Locker", "no cron", "nil option", "WithLateness(-1ns)", "Wait(-1ns)", "WithTrace(nil)"}},
		"the Locker's too": {func() { cronlock.New(l, c, contradiction, cronlock.WithLateness(0)) }, []string{"WithMaxHold(1s)", "WithLateness(0s)"}},
	} {
		func() {
			defer func() {
				err, ok := recover().(error)
				if !ok || !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "cronlock: ") {
					t.Errorf("%s: got %v, want a panic with an ErrInvalid", name, err)
					return
				}
				for _, what := range c.says {
					if !strings.Contains(err.Error(), what) {
						t.Errorf("%s: got %v, want it to say %q", name, err, what)
					}
				}
			}()
			c.f()
		}()
	}
}
