package cronlock_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/robfig/cron/v3"
)

const (
	chaosTicks  = 200
	chaosPeriod = 10 * time.Second // and half of it for a late tick
)

// Five replicas, of which one is spared the worst, with clocks of their own, pauses, cut links, crashes and restarts, and a
// Redis that is away now and then: each tick runs once, and never twice.
func TestEachTickOnceWhateverHappens(t *testing.T) {
	t.Parallel()
	seeds := 1
	if n, err := strconv.Atoi(os.Getenv("HOLDFAST_SCHEDULES")); err == nil {
		seeds = n
	}
	var end time.Time // of a soak
	if os.Getenv("HOLDFAST_SOAK") != "" {
		length, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "1m"))
		if err != nil {
			t.Fatal(err)
		}
		end = time.Now().Add(length)
	}
	first := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		first = n
	}
	n := 0
	for ; n < seeds || time.Now().Before(end) && !t.Failed(); n++ {
		seed := first + uint64(n)
		t.Run(fmt.Sprintf("SEED=%d", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) { chaos(t, b, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
	t.Logf("%d schedules from seed %d", n, first)
}

func chaos(t *testing.T, b *servertest.Bubble, r *rand.Rand) {
	j := newJournal()
	schedule, err := parser.Parse("*/10 * * * * *")
	if err != nil {
		t.Fatal(err)
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d) + 1)) }
	start := func(spared bool) *replica {
		skew := upTo(2*time.Second) - time.Second
		x := newReplica(t, b, j, cronlock.Ahead(skew))
		stall := func(inner cron.Job) cron.Job { return inner }
		if !spared {
			pauses := make(chan time.Duration, 4*chaosTicks) // of its ticks
			for range cap(pauses) {
				pauses <- upTo(12*time.Second) * time.Duration(r.IntN(4)/3)
			}
			stall = func(inner cron.Job) cron.Job {
				return cron.FuncJob(func() {
					time.Sleep(<-pauses)
					inner.Run()
				})
			}
		}
		x.cron.Stop()
		x.cron = cron.New(cron.WithLocation(time.UTC), cron.WithChain(stall))
		x.guard = cronlock.New(x.locker, x.cron, cronlock.WithTrace(j.trace()), cronlock.Ahead(skew))
		x.cron.Schedule(cronlock.Skewed(schedule, skew), x.job("job", x.work(time.Millisecond)))
		x.cron.Start()
		return x
	}
	pass(chaosPeriod / 2)
	begins := schedule.Next(time.Now().UTC())
	all := []*replica{start(true)}
	for range 4 {
		all = append(all, start(false))
	}
	ends := begins.Add(chaosTicks * chaosPeriod)
	for time.Now().Before(ends.Add(-2 * chaosPeriod)) {
		pass(upTo(chaosPeriod))
		i := 1 + r.IntN(4)
		switch r.IntN(4) {
		case 0: // its link is cut, for a while
			link := all[i].link
			link.Refuse(errors.New("cut"))
			link.Reset()
			time.AfterFunc(upTo(30*time.Second), func() { link.Refuse(nil) })
		case 1: // it crashes, and another one takes its place
			all[i].link.Refuse(errors.New("crashed"))
			all[i].link.Reset()
			all[i].cron.Stop()
			pass(upTo(chaosPeriod))
			all[i] = start(false)
		case 2: // Redis is away, for less than a tick may be late
			b.Down()
			pass(upTo(3 * time.Second))
			b.Up()
		case 3: // nothing
		}
	}
	pass(time.Until(ends.Add(-chaosPeriod / 2)))
	j.mu.Lock()
	defer j.mu.Unlock()
	runs := 0
	for tick := begins; tick.Before(ends); tick = tick.Add(chaosPeriod) {
		if got := j.runs[tick]; len(got) != 1 {
			t.Errorf("tick %v ran on %q", tick.Format(time.TimeOnly), got)
			for hook, events := range j.events {
				for _, e := range events {
					if e.Tick.Equal(tick) {
						t.Logf("%s: %+v", hook, e)
					}
				}
			}
		}
		runs++
	}
	if j.most > 1 {
		t.Errorf("%d runs at the same time", j.most)
	}
	if t.Failed() {
		return
	}
	t.Logf("%d ticks, %d runs, %d late, %d skipped", runs, len(j.runs), len(j.events["late"]), len(j.events["skipped"]))
}
