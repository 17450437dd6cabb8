package gocronlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock/gocronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9"
)

// bubble runs fn in virtual time, with a server of its own.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, servertest.NewBubble(t)) })
}

// pass lets virtual time pass, and waits for what is due by then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// runs is what happens on all replicas.
type runs struct {
	mu         sync.Mutex
	at         []time.Time // of each run
	refused    []error     // of each run that the Locker did not give away
	live, most int
}

func (r *runs) work(d time.Duration) {
	r.mu.Lock()
	r.at = append(r.at, time.Now())
	r.live++
	r.most = max(r.most, r.live)
	r.mu.Unlock()
	time.Sleep(d)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live--
}

// perTick counts the runs of each period.
func (r *runs) perTick(period time.Duration) map[string]int {
	n := map[string]int{}
	for _, at := range r.times() {
		n[at.Truncate(period).Format(time.TimeOnly)]++
	}
	return n
}

// times are those of all runs.
func (r *runs) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

func (r *runs) errs() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

func (r *runs) peak() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

func (r *runs) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

// clock is ahead of the bubble's, or behind.
type clock struct {
	clockwork.Clock
	ahead time.Duration
}

func (c clock) Now() time.Time                  { return c.Clock.Now().Add(c.ahead) }
func (c clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// replica is what would be a process of its own.
type replica struct {
	link   *servertest.Link
	locker *holdfast.Locker
	s      gocron.Scheduler
}

// start starts a replica whose clock is ahead; made makes its Locker or Elector.
func start(t *testing.T, b *servertest.Bubble, ahead time.Duration, r *runs, def gocron.JobDefinition, work time.Duration, made func(*holdfast.Locker) gocron.SchedulerOption) *replica {
	t.Helper()
	rdb := b.Client(func(o *redis.Options) { o.DialTimeout = time.Second })
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Shutdown(context.Background()) })
	s, err := gocron.NewScheduler(made(locker), gocron.WithClock(clock{clockwork.NewRealClock(), ahead}), gocron.WithLocation(time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(_ uuid.UUID, _ string, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, err)
	}
	_, err = s.NewJob(def, gocron.NewTask(r.work, work), gocron.WithName("job"), gocron.WithEventListeners(gocron.AfterLockError(refused)))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		for _, job := range s.Jobs() {
			_ = s.RemoveJob(job.ID())
		}
		pass(time.Minute) // Shutdown spins while a job runs, and the bubble's clock stands still
		_ = s.Shutdown()
	})
	return &replica{b.Link(rdb), locker, s}
}

// withLocker has a Locker by the replica's clock.
func withLocker(gap, ahead time.Duration, opts ...holdfast.CallOption) func(*holdfast.Locker) gocron.SchedulerOption {
	return func(locker *holdfast.Locker) gocron.SchedulerOption {
		l := gocronlock.New(locker, gap, opts...)
		gocronlock.SetClock(l, func() time.Time { return time.Now().Add(ahead) })
		return gocron.WithDistributedLocker(l)
	}
}

// A replica whose clock is late asks for a tick when the job of another one is over and its lock free (go-co-op/gocron 841); one
// whose clock is ahead asks before. One run per tick, and none before it.
func TestOneRunPerTick(t *testing.T) {
	for name, c := range map[string]struct {
		spec   string
		period time.Duration
		clocks []time.Duration
	}{
		"late":               {"*/5 * * * * *", 5 * time.Second, []time.Duration{0, -1500 * time.Millisecond}},
		"ahead":              {"*/5 * * * * *", 5 * time.Second, []time.Duration{0, 1500 * time.Millisecond}},
		"both":               {"*/5 * * * * *", 5 * time.Second, []time.Duration{0, 1500 * time.Millisecond, -1500 * time.Millisecond}},
		"by half a period":   {"*/5 * * * * *", 5 * time.Second, []time.Duration{0, -2500 * time.Millisecond}},
		"by a whole one":     {"* * * * * *", time.Second, []time.Duration{0, -time.Second, -1500 * time.Millisecond}},
		"by more than a gap": {"*/5 * * * * *", 5 * time.Second, []time.Duration{0, -4 * time.Second}},
		"alone, and ahead":   {"*/5 * * * * *", 5 * time.Second, []time.Duration{2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := &runs{}
				pass(500 * time.Millisecond)
				for _, ahead := range c.clocks {
					start(t, b, ahead, r, gocron.CronJob(c.spec, true), time.Millisecond, withLocker(c.period/2, ahead))
					pass(3 * c.period)
				}
				pass(20 * c.period)
				per := r.perTick(c.period)
				if want := 3*len(c.clocks) + 20; r.total() < want-1 || r.total() > want+1 || len(per) != r.total() {
					t.Errorf("%d runs in %d periods, want %d: %v", r.total(), len(per), want, per)
				}
				for _, at := range r.times() {
					if off := at.Sub(at.Truncate(c.period)); off > 100*time.Millisecond {
						t.Errorf("a run %v after a tick", off)
					}
				}
				for _, err := range r.errs() {
					if !errors.Is(err, holdfast.ErrNotAcquired) {
						t.Errorf("refused with %v", err)
					}
				}
			})
		})
	}
}

// Each replica counts the periods of a DurationJob from its start. One run per period, and after a replica has gone too.
func TestDurationJobs(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := &runs{}
		var first *replica
		for i := range 4 {
			one := start(t, b, 0, r, gocron.DurationJob(10*time.Second), time.Millisecond, withLocker(9500*time.Millisecond, 0))
			if i == 0 {
				first = one
			}
			pass(2300 * time.Millisecond)
		}
		pass(100 * time.Second)
		if err := first.s.Shutdown(); err != nil {
			t.Fatal(err)
		}
		pass(100 * time.Second)
		var last time.Time
		for _, at := range r.times() {
			if gap := at.Sub(last); !last.IsZero() && (gap < 9500*time.Millisecond || gap > 19*time.Second) {
				t.Errorf("%v between two runs", gap)
			}
			last = at
		}
		if n := r.total(); n < 19 || n > 21 {
			t.Errorf("%d runs", n)
		}
	})
}

// A job that takes longer than its period runs on one replica at a time.
func TestRunsDoNotOverlap(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := &runs{}
		for range 3 {
			start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), 12*time.Second, withLocker(4*time.Second, 0))
		}
		pass(95 * time.Second)
		if r.peak() != 1 || r.total() < 5 {
			t.Errorf("%d runs, %d at a time", r.total(), r.peak())
		}
	})
}

// A replica that dies in a run keeps later ticks from the others for no longer than its lease.
func TestReplicaThatDies(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := &runs{}
		pass(time.Millisecond)
		victim := start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), 25*time.Second, withLocker(5*time.Second, 0, holdfast.WithTTL(12*time.Second)))
		pass(12 * time.Second)
		victim.link.Refuse(errors.New("died"))
		victim.link.Reset()
		start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), time.Millisecond, withLocker(5*time.Second, 0))
		pass(15 * time.Second)
		if n := r.total(); n != 2 {
			t.Errorf("%d runs, want another one when the lease had ended", n)
		}
		victim.link.Refuse(nil)
	})
}

// A Locker that gets no answer gives no run away, and says so.
func TestRedisThatIsAway(t *testing.T) {
	log := logTo(t)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := &runs{}
		start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), time.Millisecond, withLocker(2*time.Second, 0))
		b.Down()
		pass(15 * time.Second)
		if errs := r.errs(); len(errs) != 1 || !errors.Is(errs[0], holdfast.ErrUnavailable) || r.total() > 0 || strings.Count(log.String(), "level=ERROR") != 1 {
			t.Errorf("%d runs, %v, logged %s", r.total(), errs, log)
		}
		b.Up()
		pass(10 * time.Second)
		if r.total() != 1 {
			t.Errorf("%d runs when Redis is back", r.total())
		}
	})
}

// A lost lock is logged, as gocron drops the error of Unlock.
func TestLostLockIsLogged(t *testing.T) {
	log := logTo(t)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := &runs{}
		x := start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), 8*time.Second, withLocker(2*time.Second, 0, holdfast.WithTTL(3*time.Second)))
		pass(11 * time.Second)
		x.link.Refuse(errors.New("cut"))
		x.link.Reset()
		pass(8 * time.Second)
		if text := log.String(); r.total() != 1 || strings.Count(text, "the lock was lost while its job ran") != 1 || !strings.Contains(text, "job=job") {
			t.Errorf("%d runs, logged %s", r.total(), log)
		}
		x.link.Refuse(nil)
	})
}

// A clock that is an hour off runs nothing, and keeps no other replica from running.
func TestReplicaAnHourOff(t *testing.T) {
	logTo(t)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, off := &runs{}, &runs{}
		for _, ahead := range []time.Duration{time.Hour, -time.Hour - time.Minute} {
			start(t, b, ahead, off, gocron.CronJob("*/10 * * * * *", true), time.Millisecond, withLocker(5*time.Second, ahead))
		}
		start(t, b, 0, r, gocron.CronJob("*/10 * * * * *", true), time.Millisecond, withLocker(5*time.Second, 0))
		pass(105 * time.Second)
		if errs := off.errs(); r.total() != 10 || off.total() > 0 || len(errs) == 0 || !errors.Is(errs[0], tick.ErrWindow) {
			t.Errorf("%d and %d runs, %v", r.total(), off.total(), errs)
		}
	})
}

// Only the leader runs jobs; from the moment of a loss it runs none, and the next leader all.
func TestElector(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, ctx := [2]*runs{{}, {}}, t.Context()
		var electors [2]*gocronlock.Elector
		var replicas [2]*replica
		var stops [2]context.CancelFunc
		for i := range r {
			replicas[i] = start(t, b, 0, r[i], gocron.CronJob("* * * * * *", true), time.Millisecond, func(l *holdfast.Locker) gocron.SchedulerOption {
				electors[i] = gocronlock.NewElector(l, "leader", holdfast.WithTTL(3*time.Second))
				return gocron.WithDistributedElector(electors[i])
			})
			if err := electors[i].IsLeader(ctx); !errors.Is(err, holdfast.ErrNotAcquired) {
				t.Errorf("before Run: %v", err)
			}
			var own context.Context
			own, stops[i] = context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- electors[i].Run(own) }()
			t.Cleanup(func() {
				stops[i]()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("Run returned %v", err)
				}
			})
			pass(time.Millisecond)
		}
		expect := func(first, second int) {
			t.Helper()
			if r[0].total() != first || r[1].total() != second {
				t.Errorf("%d and %d runs, want %d and %d", r[0].total(), r[1].total(), first, second)
			}
		}
		pass(5*time.Second + 500*time.Millisecond)
		expect(5, 0)

		link := replicas[0].link // of the leader
		link.Refuse(errors.New("cut"))
		link.Reset()
		for electors[0].IsLeader(ctx) == nil {
			if electors[1].IsLeader(ctx) == nil {
				t.Fatal("two leaders")
			}
			pass(time.Millisecond)
		}
		if err := electors[0].IsLeader(ctx); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("after a loss: %v", err)
		}
		first := r[0].total()
		pass(5 * time.Second)
		if r[0].total() != first || r[1].total() < 3 {
			t.Errorf("%d runs of a leader after its loss, %d of the next one", r[0].total()-first, r[1].total())
		}
		link.Refuse(nil)
		pass(time.Minute) // a new connection, and a place in the line
		stops[1]()
		pass(100 * time.Millisecond)
		if err := electors[0].IsLeader(ctx); err != nil {
			t.Errorf("after the other one has stopped: %v", err)
		}
	})
}

// A process that was paused is no leader, also before any of its timers has fired.
func TestLeaderThatWasPaused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client()
		locker, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(context.Background())
		e := gocronlock.NewElector(locker, "leader", holdfast.WithTTL(3*time.Second))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		pass(10 * time.Millisecond)
		if err := e.IsLeader(ctx); err != nil {
			t.Fatal(err)
		}
		b.Pause()
		time.Sleep(time.Minute)
		if err := e.IsLeader(ctx); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v", err)
		}
		b.Resume()
		cancel()
		<-ended
	})
}

func TestMistakes(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which nothing here asks
	defer rdb.Close()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]func(){
		"no locker":  func() { gocronlock.New(nil, time.Second) },
		"no gap":     func() { gocronlock.New(l, 0) },
		"longer":     func() { gocronlock.New(l, 1000*24*time.Hour) },
		"bad option": func() { gocronlock.New(l, time.Second, holdfast.WithTTL(-1)) },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(fmt.Sprint(err), "gocronlock: New: ") {
					t.Errorf("%s: got %v", name, err)
				}
			}()
			c()
		}()
	}
	logTo(t)
	if lock, err := gocronlock.New(l, time.Second).Lock(t.Context(), ""); lock != nil || !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no name: %v, %v", lock, err)
	}
}

// logTo has slog write into a buffer until the test ends, which is not to be parallel.
func logTo(t *testing.T) *syncBuffer {
	t.Helper()
	before, logged := slog.Default(), &syncBuffer{}
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(logged, nil)))
	return logged
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
