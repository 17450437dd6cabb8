package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/robfig/cron/v3"
)

// every returns the ticks of "@every" between two moments.
func every(period time.Duration, from, to time.Time) (ticks []time.Time) {
	p := int64(period / time.Second)
	for unix := from.Unix() - from.Unix()%p + p; unix <= to.Unix(); unix += p {
		ticks = append(ticks, time.Unix(unix, 0).UTC())
	}
	return ticks
}

// "@every" counts from 1970, on all replicas, also where each is restarted more often than the period.
func TestEvery(t *testing.T) {
	for spec, tt := range map[string]struct{ period, restart time.Duration }{
		"@every 10s":    {10 * time.Second, time.Hour},
		"@every 8s":     {8 * time.Second, 6 * time.Second},
		"@every 1.9s":   {time.Second, 700 * time.Millisecond},
		"@every 10ms":   {time.Second, 3 * time.Second},
		"@every 24h":    {24 * time.Hour, 23 * time.Hour},
		"@every 36h30m": {36*time.Hour + 30*time.Minute, 25 * time.Hour},
	} {
		if _, err := parser.Parse(spec); err != nil {
			continue // to forks of robfig/cron 10ms is a mistake
		}
		t.Run(spec, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				pass(1234 * time.Millisecond)
				from := time.Now()
				to, replicas := from.Add(20*tt.period), [2]*replica{}
				for i := 0; time.Now().Before(to); i++ { // one of the two is there while the other one starts
					r := &replicas[i%2]
					if *r != nil {
						(*r).stop(t)
					}
					*r = newReplica(t, b, j)
					(*r).add(t, spec, "job", time.Millisecond)
					pass(min(tt.restart/2, time.Until(to)))
				}
				pass(10 * time.Millisecond)
				want := every(tt.period, from, to)
				if got := j.ticks(); !slices.Equal(got, want) || j.total() != len(want) || len(j.of("differs"))+len(j.of("failed")) > 0 {
					t.Errorf("ran at %v, want %v", got, want)
				}
			})
		})
	}
}

// Where cron counts, each replica has ticks of its own. Runs are a period apart at least, and two at most.
func TestEveryOfCron(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for i := range 4 {
			r := newReplica(t, b, j)
			r.cron.Schedule(cron.Every(10*time.Second), r.job("job", r.work(time.Millisecond)))
			pass(time.Duration(i) * 3300 * time.Millisecond)
		}
		pass(200 * time.Second)
		var last time.Time
		for _, e := range j.of("ran") {
			if gap := e.Tick.Sub(last); !last.IsZero() && (gap < 10*time.Second || gap > 20*time.Second) {
				t.Errorf("%v between two runs", gap)
			}
			last = e.Tick
		}
		if n := j.total(); n < 18 || n > 21 {
			t.Errorf("%d runs", n)
		}
	})
}

// A clock that is an hour off neither runs a job at the wrong time nor keeps the others from it.
func TestReplicaAnHourOff(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		schedule, _ := parser.Parse("* * * * *")
		newReplica(t, b, j).add(t, "* * * * *", "job", time.Millisecond)
		offs := map[time.Duration]*journal{time.Hour: newJournal(), -time.Hour - time.Minute: newJournal()}
		for off, own := range offs {
			r := newReplica(t, b, own, cronlock.Ahead(off))
			r.cron.Schedule(cronlock.Skewed(schedule, off), r.job("job", r.work(time.Millisecond)))
		}
		pass(10*time.Minute + time.Second)
		if j.total() != 10 {
			t.Errorf("%d runs, %v", j.total(), j)
		}
		for off, own := range offs {
			late := own.of("late")
			if own.total() > 0 || len(late) != 10 || !errors.Is(late[0].Err, tick.ErrWindow) {
				t.Errorf("%v off: %d runs, %v", off, own.total(), own)
			}
		}
	})
}

// bare starts a cron without a Guard, and returns what returns the ticks at which it has run a job.
func bare(t *testing.T, l *time.Location, spec string) (ticks func() []time.Time) {
	t.Helper()
	var mu sync.Mutex
	var all []time.Time
	c := cron.New(cron.WithLocation(l))
	_, err := c.AddFunc(spec, func() {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Now().UTC())
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	t.Cleanup(func() { c.Stop() })
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// When the clocks go back an hour, robfig's cron has 01:30 twice, and both are ticks; when they go forward, none is made up.
// Forks differ, and their ticks are the ticks.
func TestClockChanges(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	for name, c := range map[string]struct {
		from time.Time
		want []string
	}{
		"back":    {time.Date(2000, 10, 28, 12, 0, 0, 0, berlin), []string{"2000-10-29T00:30:00Z", "2000-10-29T01:30:00Z", "2000-10-30T01:30:00Z"}},
		"forward": {time.Date(2000, 3, 25, 12, 0, 0, 0, berlin), []string{"2000-03-27T00:30:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				pass(time.Until(c.from))
				j, ticks := newJournal(), bare(t, berlin, "30 2 * * *")
				for range 2 {
					r := newReplica(t, b, j)
					r.cron.Stop()
					r.cron = cron.New(cron.WithLocation(berlin))
					r.guard = cronlock.New(r.locker, r.cron, cronlock.WithTrace(j.trace()))
					r.cron.Start()
					r.add(t, "30 2 * * *", "job", time.Millisecond)
				}
				pass(48 * time.Hour)
				var got []string
				for _, e := range j.of("ran") {
					got = append(got, e.Tick.UTC().Format(time.RFC3339))
				}
				want := c.want
				if !strings.Contains(reflect.TypeFor[cron.Cron]().PkgPath(), "robfig") {
					want = nil
					for _, at := range ticks() {
						want = append(want, at.Format(time.RFC3339))
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("ran at %v, want %v", got, want)
				}
			})
		})
	}
}

// once is a schedule that ends.
type once time.Time

func (o once) Next(now time.Time) time.Time {
	if now.Before(time.Time(o)) {
		return time.Time(o)
	}
	return time.Time{}
}

func TestLastTick(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		at := once(time.Now().Add(time.Minute))
		for range 2 {
			r := newReplica(t, b, j)
			r.cron.Schedule(at, r.job("job", r.work(time.Millisecond)))
		}
		b.Down() // for less than half of a day, and than a minute
		pass(time.Minute + 50*time.Second)
		b.Up()
		pass(time.Hour)
		if j.total() != 1 || len(j.of("ran")) != 1 {
			t.Errorf("%d runs, %v", j.total(), j)
		}
	})
}

// A tick that came too late to this replica, which was paused, is left out.
func TestPausedBeforeTheClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.rechain(func(inner cron.Job) cron.Job {
			return cron.FuncJob(func() { time.Sleep(40 * time.Second); inner.Run() })
		})
		r.add(t, "* * * * *", "job", time.Millisecond)
		pass(2*time.Minute + 50*time.Second)
		if late := j.of("late"); j.total() > 0 || len(late) != 2 || !strings.Contains(late[0].Err.Error(), "40s late, at most 30s allowed") {
			t.Errorf("%d runs, %v", j.total(), j)
		}
	})
}

// The ticks that cron runs late when a process wakes up are all judged by the period of the schedule, and not by the time that
// the process slept, which lies between two ticks of its cron.
func TestPeriodAfterAPause(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		sleeper := &sleeper{}
		if err := r.guard.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.cron = cron.New(cron.WithParser(parser), cron.WithLocation(time.UTC), cron.WithLogger(sleeper))
		r.guard = cronlock.New(r.locker, r.cron, cronlock.WithTrace(j.trace()))
		r.add(t, "* * * * * *", "job", time.Millisecond)
		r.cron.Start()
		pass(3500 * time.Millisecond)
		ran := j.total()
		sleeper.next.Store(int64(17 * time.Second))
		pass(19 * time.Second)
		late := j.of("late")
		if ran != 3 || len(late) != 2 {
			t.Fatalf("%d runs, %v", ran, j)
		}
		for _, e := range late {
			if !strings.Contains(e.Err.Error(), "at most 500ms allowed") {
				t.Errorf("tick %v: %v", e.Tick, e.Err)
			}
		}
	})
}

// sleeper has cron sleep when it wakes up for a tick, as a process that was stopped does.
type sleeper struct{ next atomic.Int64 }

func (s *sleeper) Info(msg string, _ ...any) {
	if msg == "wake" {
		time.Sleep(time.Duration(s.next.Swap(0)))
	}
}

func (s *sleeper) Error(error, string, ...any) {}

// What goes wrong is logged, and nothing else, unless a Trace has the hook, of the Guard or of the job. An empty one changes
// nothing.
func TestWhatIsSaidByDefault(t *testing.T) {
	late := func(r *replica) {
		pass(61 * time.Second)
		r.link.Refuse(errors.New("no route"))
		r.link.Reset()
		pass(time.Minute + 40*time.Second)
	}
	lose := func(r *replica) {
		pass(time.Minute + time.Second)
		_ = r.rdb.Del(context.Background(), "cron:job").Err()
		pass(40 * time.Second)
	}
	trace := cronlock.WithTrace(newJournal().trace())
	for name, c := range map[string]struct {
		opts    []cronlock.Option
		takes   time.Duration
		happens func(*replica)
		says    []string // one line each
	}{
		"late":     {nil, time.Millisecond, late, []string{"level=ERROR msg=\"cronlock: a tick does not run on this replica"}},
		"unlocked": {[]cronlock.Option{cronlock.WithFailOpen()}, time.Millisecond, late, []string{"level=WARN msg=\"cronlock: a job runs without"}},
		"lost":     {nil, 30 * time.Second, lose, []string{"level=ERROR msg=\"cronlock: the lock was lost"}},
	} {
		for _, traced := range []string{"", "the Guard", "the job", "nothing"} {
			t.Run(name+" "+traced, func(t *testing.T) {
				log := logTo(t)
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r := newReplica(t, b, newJournal())
					var ofGuard, ofJob []cronlock.Option
					switch traced {
					case "the Guard":
						ofGuard = append(ofGuard, trace)
					case "the job":
						ofJob = append(ofJob, trace)
					case "nothing":
						ofGuard = append(ofGuard, cronlock.WithTrace(&cronlock.Trace{}))
					}
					r.guard = cronlock.New(r.locker, r.cron, ofGuard...)
					r.add(t, "* * * * *", "job", c.takes, append(ofJob, c.opts...)...)
					c.happens(r)
				})
				want := 0
				said := traced == "" || traced == "nothing"
				if said {
					want = len(c.says)
				}
				text := log.String()
				if strings.Count(text, "\n") != want || strings.Count(text, "job=job tick=") != want {
					t.Errorf("got %s", text)
				}
				for _, what := range c.says {
					if strings.Contains(text, what) != said {
						t.Errorf("got %s, want of it %s: %v", text, what, said)
					}
				}
			})
		}
	}
}

// A holdfast.LogTrace of the Locker has the line about a loss, in place of the Guard. What else a job failed with is said too.
func TestLossThatTheLockerLogs(t *testing.T) {
	for _, c := range []struct {
		logs bool
		fn   func(context.Context) error
		says []string
	}{
		{false, func(ctx context.Context) error { <-ctx.Done(); return nil }, []string{"cronlock: the lock was lost"}},
		{false, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, []string{"cronlock: the lock was lost"}},
		{false, func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("invoice 7: %w", context.Cause(ctx)) }, []string{"cronlock: the lock was lost"}},
		{true, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, []string{"holdfast: lost"}},
		{true, func(ctx context.Context) error { <-ctx.Done(); return errors.New("no paper") }, []string{"holdfast: lost", "no paper"}},
		{false, func(context.Context) error { return context.Canceled }, []string{"cronlock: a job failed"}}, // not by a loss
	} {
		log := logTo(t)
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b, newJournal())
			var opts []holdfast.Option
			if c.logs {
				opts = append(opts, holdfast.WithTrace(holdfast.LogTrace(nil)))
			}
			l, err := holdfast.New(r.rdb, opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Shutdown(context.Background())
			r.guard = cronlock.New(l, r.cron)
			defer r.guard.Stop(context.Background())
			if _, err := r.guard.AddFunc("* * * * *", "job", c.fn); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute + time.Second)
			_ = r.rdb.Del(context.Background(), "cron:job").Err()
			pass(50 * time.Second)
		})
		text := log.String()
		for _, what := range c.says {
			if !strings.Contains(text, what) {
				t.Errorf("no %q in\n%s", what, text)
			}
		}
		if strings.Count(text, "\n") != len(c.says) {
			t.Errorf("want %q, got\n%s", c.says, text)
		}
	}
}

// A replica that was paused over a tick cannot know that another one ran it, and has nothing to report as an error. A tick
// that it claimed and cannot run any more is one.
func TestPausedReplicaLogsNoError(t *testing.T) {
	log := logTo(t)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		untraced := func(r *replica) *replica { r.guard = cronlock.New(r.locker, r.cron); return r }
		paused := newReplica(t, b, j)
		paused.rechain(func(inner cron.Job) cron.Job {
			return cron.FuncJob(func() { time.Sleep(40 * time.Second); inner.Run() })
		})
		for _, r := range []*replica{untraced(paused), untraced(newReplica(t, b, j))} {
			r.add(t, "* * * * *", "job", time.Millisecond)
		}
		pass(time.Minute + 50*time.Second)
		if j.total() != 1 {
			t.Errorf("%d runs", j.total())
		}
	})
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN msg=\"cronlock: a tick came too late to this replica") {
		t.Errorf("got %s", text)
	}
}
