package cronlock_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/robfig/cron/v3"
)

// uneven is a schedule with a state, which only its cron may touch: two periods in turn.
type uneven struct {
	calls int
	short time.Duration
	long  time.Duration
	last  time.Time
}

func (u *uneven) Next(now time.Time) time.Time {
	if u.last.IsZero() {
		u.last = now.Truncate(u.short + u.long)
	}
	for !u.last.After(now) {
		u.calls++
		u.last = u.last.Add([]time.Duration{u.short, u.long}[u.calls%2])
	}
	return u.last
}

// never has no tick.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// Schedules that are not cron's own: asked by their cron alone, for what it needs.
func TestOtherSchedules(t *testing.T) {
	for name, c := range map[string]struct {
		schedule func() cron.Schedule
		length   time.Duration
		runs     int
	}{
		"uneven":       {func() cron.Schedule { return &uneven{short: 2 * time.Second, long: 8 * time.Second} }, time.Minute, 12},
		"below second": {func() cron.Schedule { return &uneven{short: 100 * time.Millisecond, long: 100 * time.Millisecond} }, 10 * time.Second, 100},
		"never":        {func() cron.Schedule { return never{} }, time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				var all []*uneven
				for range 2 {
					r := newReplica(t, b, j)
					s := c.schedule()
					if u, ok := s.(*uneven); ok {
						all = append(all, u)
					}
					r.cron.Schedule(s, r.job("job", r.work(time.Millisecond)))
				}
				pass(c.length + 10*time.Millisecond)
				if j.total() != c.runs || len(j.ticks()) != c.runs || len(j.of("late"))+len(j.of("failed"))+len(j.of("differs")) > 0 {
					t.Errorf("%d runs, want %d", j.total(), c.runs)
				}
				for _, u := range all {
					if u.calls > c.runs+1 {
						t.Errorf("asked for %d ticks", u.calls)
					}
				}
			})
		})
	}
}

// monotonic has ticks with a reading of the monotonic clock, as those of "@every" outside of a bubble.
type monotonic struct {
	cron.Schedule
	base time.Time
}

func (m monotonic) Next(now time.Time) time.Time { return m.base.Add(m.Schedule.Next(now).Sub(m.base)) }

// A tick is of the wall clock alone: the other one stands still while a machine sleeps.
func TestTicksAreOfTheWallClock(t *testing.T) {
	base := time.Now()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		r.cron.Schedule(monotonic{cron.Every(10 * time.Second), base}, r.job("job", r.work(time.Millisecond)))
		pass(11 * time.Second)
		if ran := j.of("ran"); len(ran) != 1 || ran[0].Tick != ran[0].Tick.Round(0) {
			t.Errorf("%v", j)
		}
	})
}

// The ticks of many jobs that are due at once are all theirs.
func TestManyJobsAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		for i := range 60 {
			r.add(t, fmt.Sprintf("*/%d * * * * *", 2+i%3), fmt.Sprint(i), time.Millisecond)
		}
		pass(13*time.Second - time.Duration(time.Now().Nanosecond()))
		for _, e := range j.of("ran") {
			var i int
			_, _ = fmt.Sscan(e.Name, &i)
			if e.Tick.Second()%(2+i%3) != 0 || e.Tick.Nanosecond() != 0 {
				t.Errorf("job %d at %v", i, e.Tick)
			}
		}
		if n := j.total(); n != 20*(6+4+3) {
			t.Errorf("%d runs", n)
		}
	})
}

// "@every" by cron: a replica whose phase is just short of a period after another's waits for its own next tick; when the one that
// runs is gone, the next run is less than two periods after its last; one that comes back does not crowd in.
func TestEveryWhenReplicasComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		add := func() *replica {
			r := newReplica(t, b, j)
			r.cron.Schedule(cron.Every(10*time.Second), r.job("job", r.work(time.Millisecond)))
			return r
		}
		first := add()
		pass(9 * time.Second)
		add() // at 19 s and so on
		pass(32 * time.Second)
		first.cron.Stop() // after 40 s
		pass(2500 * time.Millisecond)
		add() // at 53 s and so on
		pass(40 * time.Second)
		start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		var got []int
		for _, at := range j.ticks() {
			got = append(got, int(at.Sub(start).Seconds()))
		}
		if want := []int{10, 20, 30, 40, 53, 63, 73, 83}; j.total() != len(want) || !slices.Equal(got, want) {
			t.Errorf("ran at %v, want %v", got, want)
		}
	})
}

// A year, and more, is beyond what core keeps apart: the ticks run all the same.
func TestLongPeriods(t *testing.T) {
	for _, spec := range []string{"@yearly", "@every 10000h"} {
		t.Run(spec, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 2 {
					newReplica(t, b, j).add(t, spec, "job", time.Millisecond)
				}
				pass(3 * 10001 * time.Hour)
				if j.total() != 3 || len(j.of("late"))+len(j.of("failed")) > 0 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// Lateness beyond the period: the ticks of an outage are asked for together, and none runs twice or beside another.
func TestLatenessBeyondThePeriod(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for range 2 {
			newReplica(t, b, j, cronlock.WithLateness(time.Minute)).add(t, "*/10 * * * * *", "job", time.Second)
		}
		pass(15 * time.Second)
		b.Down()
		pass(30 * time.Second)
		b.Up()
		pass(30 * time.Second)
		for _, at := range j.ticks() {
			if on := j.ranOn(at); len(on) != 1 {
				t.Errorf("%v ran on %v", at, on)
			}
		}
		if n := j.total(); j.peak() != 1 || n < 4 {
			t.Errorf("%v", j)
		}
	})
}

// A clock of Redis that is stepped gives no tick twice.
func TestClockOfRedisSteps(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for range 3 {
			newReplica(t, b, j).add(t, "*/10 * * * * *", "job", time.Millisecond)
		}
		pass(6 * time.Second) // a step comes between ticks, also where they are 5 s later
		for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 2 * time.Hour, -2 * time.Hour, 0} {
			pass(20 * time.Second)
			b.Skew(step)
		}
		pass(20 * time.Second)
		for _, at := range j.ticks() {
			if on := j.ranOn(at); len(on) != 1 {
				t.Errorf("%v ran on %v", at, on)
			}
		}
		if n := j.total(); n != 8 {
			t.Errorf("%d runs: %v", n, j)
		}
		if late := j.of("late"); len(late) != 2*2*3 || !errors.Is(late[0].Err, tick.ErrWindow) {
			t.Errorf("late: %v", late)
		}
	})
}

// A deploy that changes the spec is reported while old replicas are about and shortly after, and then no more.
func TestDeployOfAnotherSpec(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		old := newReplica(t, b, j)
		old.add(t, "*/10 * * * * *", "job", time.Millisecond)
		pass(2 * time.Minute)
		newReplica(t, b, j).add(t, "*/20 * * * * *", "job", time.Millisecond)
		pass(2 * time.Minute)
		old.cron.Stop()
		pass(4 * time.Minute)
		during := len(j.of("differs"))
		pass(time.Hour)
		if after := len(j.of("differs")); during < 2 || after != during {
			t.Errorf("%d reports, and %d later", during, after-during)
		}
	})
}

// Across both changes of the clocks each tick that cron has runs once, an hour apart or a day.
func TestEachTickAcrossClockChanges(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	for _, spec := range []string{"@hourly", "@daily", "CRON_TZ=America/New_York 30 1 * * *"} {
		for _, from := range []time.Time{time.Date(2000, 3, 25, 12, 0, 0, 0, berlin), time.Date(2000, 10, 28, 12, 0, 0, 0, berlin)} {
			t.Run(fmt.Sprint(spec, " in ", from.Month()), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					pass(time.Until(from))
					j, want := newJournal(), bare(t, berlin, spec)
					for range 2 {
						r := newReplica(t, b, j)
						r.cron.Stop()
						r.cron = cron.New(cron.WithLocation(berlin))
						r.guard = cronlock.New(r.locker, r.cron, cronlock.WithTrace(j.trace()))
						r.cron.Start()
						r.add(t, spec, "job", time.Millisecond)
					}
					pass(2*24*time.Hour + time.Minute)
					for _, next := range want() {
						if on := j.ranOn(next); len(on) != 1 {
							t.Errorf("%v ran on %q", next, on)
						}
					}
					if n := len(want()); n < 2 || j.total() != n || len(j.of("differs"))+len(j.of("late"))+len(j.of("failed")) > 0 {
						t.Errorf("%d runs, want %d", j.total(), n)
					}
				})
			})
		}
	}
}

// "@every" where the clocks differ: a period apart by the ticks, and as much less in truth as the clocks are apart.
func TestEveryWithClocksThatDiffer(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		for _, ahead := range []time.Duration{0, 3 * time.Second, -2 * time.Second} {
			r := newReplica(t, b, j, cronlock.Ahead(ahead))
			r.cron.Schedule(cronlock.Skewed(cron.Every(10*time.Second), ahead), r.job("job", r.work(time.Millisecond)))
			pass(4 * time.Second)
		}
		pass(3 * time.Minute)
		var last time.Time
		for _, at := range j.ticks() {
			if gap := at.Sub(last); !last.IsZero() && (gap < 10*time.Second || gap > 20*time.Second) {
				t.Errorf("%v between two ticks", gap)
			}
			last = at
		}
		if n := j.total(); n < 10 || n > 20 || len(j.of("late"))+len(j.of("differs")) > 0 {
			t.Errorf("%v", j)
		}
	})
}
