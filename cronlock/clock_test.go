package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A job begins when its tick has come by the clock of Redis, on a replica whose own is ahead too, alone or not; and
// a clock that is off is warned about once.
func TestTicksGoByTheClockOfRedis(t *testing.T) {
	schedule, err := parser.Parse("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off      time.Duration
		late     time.Duration // how late a job begins where there is no other replica
		warnings int
	}{
		{0, 0, 0},
		{300 * time.Millisecond, 0, 0},
		{9 * time.Second, 0, 1},
		{-9 * time.Second, 9 * time.Second, 1},
	} {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v off, alone %v", c.off, alone), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					pass(30 * time.Second) // between ticks for all of them
					j, log := newJournal(), logTo(t)
					var mu sync.Mutex
					began := map[time.Time]time.Duration{}
					work := func(r *replica) func(context.Context) error {
						return func(ctx context.Context) error {
							defer r.j.begin(ctx, r.name)()
							mu.Lock()
							defer mu.Unlock()
							_, at, _ := cronlock.Tick(ctx)
							began[at] = time.Since(at)
							return nil
						}
					}
					r := newReplica(t, b, j, cronlock.Ahead(c.off))
					r.cron.Schedule(cronlock.Skewed(schedule, c.off), r.job("job", work(r)))
					if !alone {
						other := newReplica(t, b, j)
						if _, err := other.guard.AddFunc("* * * * *", "job", work(other)); err != nil {
							t.Fatal(err)
						}
					}
					pass(10 * time.Minute)
					want := c.late
					if !alone {
						want = 0
					}
					for at, late := range began {
						if late < want || late > want+50*time.Millisecond {
							t.Errorf("%v began %v after its tick, want %v", at, late, want)
						}
					}
					if n := j.total(); n != 10 || len(began) != 10 {
						t.Errorf("%d runs of %d ticks", n, len(began))
					}
					if text := log.String(); strings.Count(text, "level=WARN") != c.warnings || c.warnings > 0 && !strings.Contains(text, "clock") {
						t.Errorf("logged %s", text)
					}
				})
			})
		}
	}
}

// A replica that is ahead asks for the time until it gets it, unless it may not have it.
func TestTimeOfRedisIsLost(t *testing.T) {
	schedule, err := parser.Parse("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		refused bool
		late    time.Duration
	}{"lost twice": {false, 0}, "denied": {true, -9 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var began time.Duration
				r := newReplica(t, b, newJournal(), cronlock.Ahead(9*time.Second))
				r.cron.Schedule(cronlock.Skewed(schedule, 9*time.Second), r.job("job", func(ctx context.Context) error {
					_, at, _ := cronlock.Tick(ctx)
					began = time.Since(at)
					return nil
				}))
				lost := 0
				var denied atomic.Bool // and not what the script of a claim asks behind it
				r.link.OnCommand(func(args []string) servertest.Verdict {
					switch {
					case !strings.EqualFold(args[0], "time"):
					case c.refused:
						denied.Store(true)
					case lost < 2:
						lost++
						return servertest.LoseReplyAndClose
					}
					return servertest.Pass
				})
				b.Hook(func(peer *server.Peer, cmd string, _ ...string) bool {
					if cmd != "TIME" || !denied.CompareAndSwap(true, false) {
						return false
					}
					peer.WriteError("NOPERM this user has no permissions to run the 'time' command")
					return true
				})
				pass(time.Minute + 30*time.Second)
				if began < c.late || began > c.late+50*time.Millisecond {
					t.Errorf("it began %v after its tick, want %v", began, c.late)
				}
			})
		})
	}
}

// A tick runs once across a restart of Redis if Redis has saved its claim, and may run twice if it has not: the promise
// has that condition.
func TestTickAcrossARestartOfRedis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		runs int
	}{
		"saved":     {servertest.Durable, 1},
		"not saved": {[]string{"--appendonly", "no", "--save", ""}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, c.args...)
			rdb := server.Client()
			at, granted := time.Now().Truncate(time.Minute), 0
			claim := func() bool {
				l, err := holdfast.New(rdb)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				won, err := tick.Claim(ctx, l, holdfast.Key("cron", "job"), at)
				if err := errors.Join(err, l.Shutdown(t.Context())); err != nil {
					t.Fatal(err)
				}
				return won
			}
			for range 2 {
				if claim() {
					granted++
				}
				server.Kill()
				server.Start()
			}
			if granted != c.runs {
				t.Errorf("granted %d times, want %d", granted, c.runs)
			}
		})
	}
}
