package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// ticks is what schedulers report and handlers see.
type ticks struct {
	mu     sync.Mutex
	events []event
	ran    []string
}

func (k *ticks) report(e event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.events = append(k.events, e)
}

func (k *ticks) of(kind string) (events []event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.events {
		if e.kind == kind {
			events = append(events, e)
		}
	}
	return events
}

// runs and all are copies.
func (k *ticks) runs() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.ran)
}

func (k *ticks) all() []event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.events)
}

// schedule starts a replica.
func (s *shop) schedule(k *ticks, opts ...asynqlock.SchedulerOption) *asynqlock.Scheduler {
	s.t.Helper()
	sch := asynqlock.NewScheduler(s.locker(), append([]asynqlock.SchedulerOption{asynqlock.WithTrace(traceTo(k.report))}, opts...)...)
	s.start(sch)
	s.t.Cleanup(sch.Shutdown)
	return sch
}

func (s *shop) start(sch *asynqlock.Scheduler) {
	s.t.Helper()
	if err := sch.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// work runs the tasks that schedulers enqueue, which take no time and leave nothing behind.
func (s *shop) work(k *ticks) {
	s.t.Helper()
	server := asynq.NewServerFromRedisClient(s.client(), asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 400 * time.Millisecond})
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		name, at, ok := asynqlock.Tick(ctx, t)
		if !ok {
			s.t.Error("a task without a tick")
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.ran = append(k.ran, fmt.Sprintf("%s %s", name, at.UTC().Format(time.TimeOnly)))
		return nil
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(server.Shutdown)
}

func register(t testing.TB, sch *asynqlock.Scheduler, name, spec string, opts ...asynq.Option) {
	t.Helper()
	if err := sch.Register(spec, name, asynq.NewTask("report", nil, asynq.MaxRetry(3)), opts...); err != nil {
		t.Fatal(err)
	}
}

// Each tick is one run, however skewed the replicas are, and though each run is over before the next replica gets there.
func TestEachTickIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	for spec, period := range map[string]time.Duration{"* * * * *": time.Minute, "@every 7s": 7 * time.Second} {
		t.Run(spec, func(t *testing.T) {
			bubble(t, func(s *shop) {
				var k ticks
				s.work(&k)
				for i, skew := range []time.Duration{0, -300 * time.Millisecond, 600 * time.Millisecond, -3 * time.Second} {
					time.Sleep(time.Duration(i) * 500 * time.Millisecond) // they start at different moments
					register(t, s.schedule(&k, asynqlock.Ahead(skew)), "report", spec)
				}
				want := often(int(min(5*time.Minute/period, 20)), 50)
				for range want {
					time.Sleep(period)
				}
				time.Sleep(period / 2)
				ran := k.runs()
				slices.Sort(ran)
				if len(ran) < want || len(ran) > want+1 || len(slices.Compact(slices.Clone(ran))) != len(ran) {
					t.Errorf("%d runs for %d ticks: %q", len(ran), want, ran)
				}
				for _, e := range k.all() {
					if e.kind == "missed" || e.Tick.Unix()%int64(period/time.Second) != 0 {
						t.Errorf("got %+v", e)
					}
					if e.kind == "enqueued" && (e.Info.ID != fmt.Sprintf("report@%d", e.Tick.Unix()) || e.Info.MaxRetry != 3) {
						t.Errorf("got task %+v", e.Info)
					}
				}
			})
		})
	}
}

// Replicas come and go, and some replica is there at each tick.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		var k ticks
		s.work(&k)
		var replicas []*asynqlock.Scheduler
		for range 60 {
			sch := s.schedule(&k)
			register(t, sch, "report", "@every 10s")
			if replicas = append(replicas, sch); len(replicas) > 2 {
				replicas[0].Shutdown()
				replicas = replicas[1:]
			}
			time.Sleep(7300 * time.Millisecond)
		}
		began, want := k.all()[0].Tick, 0
		for at := began; !at.After(time.Now()); at = at.Add(10 * time.Second) {
			want++
		}
		time.Sleep(time.Second)
		if len(k.runs()) != want {
			t.Errorf("%d runs for %d ticks: %q", len(k.runs()), want, k.runs())
		}
	})
}

// A replica whose clock is an hour off neither runs anything at the wrong time nor keeps the others from it.
func TestReplicaAnHourOff(t *testing.T) {
	bubble(t, func(s *shop) {
		var k, ahead, behind ticks
		s.work(&k)
		register(t, s.schedule(&ahead, asynqlock.Ahead(time.Hour)), "report", "* * * * *")
		register(t, s.schedule(&behind, asynqlock.Ahead(-time.Hour-time.Minute)), "report", "* * * * *")
		register(t, s.schedule(&k), "report", "* * * * *")
		time.Sleep(10*time.Minute + time.Second)
		if len(k.runs()) != 10 || len(k.of("enqueued")) != 10 {
			t.Errorf("%d runs for 10 ticks: %q", len(k.runs()), k.runs())
		}
		for name, off := range map[string]*ticks{"ahead": &ahead, "behind": &behind} {
			missed := off.of("missed")
			if len(missed) != 10 || !errors.Is(missed[0].Err, tick.ErrWindow) {
				t.Errorf("%s: got %+v", name, off.all())
			}
		}
	})
}

// While Redis is away a tick is tried again, for a bounded time, and then missed.
func TestRedisAwayAtTheTick(t *testing.T) {
	for name, c := range map[string]struct {
		away time.Duration
		kind string
	}{
		"for a while":  {20 * time.Second, "enqueued"},
		"for too long": {40 * time.Second, "missed"},
	} {
		t.Run(name, func(t *testing.T) {
			var b *servertest.Bubble
			bubbleWith(t, func(s *shop, bb *servertest.Bubble) {
				b = bb
				var k ticks
				rdb := b.Client(func(o *redis.Options) { o.DialTimeout = time.Second })
				l, err := holdfast.New(rdb)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					if err := l.Shutdown(ctx); err != nil {
						t.Error(err)
					}
				}()
				sch := asynqlock.NewScheduler(l, asynqlock.WithTrace(traceTo(k.report)))
				defer sch.Shutdown()
				s.start(sch)
				register(t, sch, "report", "* * * * *") // half a period: 30 s
				for time.Now().Second() != 55 {
					time.Sleep(time.Second)
				}
				link := b.Link(rdb)
				link.Refuse(errors.New("no route"))
				link.Reset()
				time.Sleep(5*time.Second + c.away)
				link.Refuse(nil)
				time.Sleep(15 * time.Second) // not until the next tick
				if len(k.all()) != 1 || k.all()[0].kind != c.kind {
					t.Errorf("got %+v", k.all())
				}
				if c.kind == "missed" && !errors.Is(k.all()[0].Err, holdfast.ErrUnavailable) {
					t.Errorf("got %v", k.all()[0].Err)
				}
			})
		})
	}
}

// A machine that was suspended sees its tick too late, if nobody else has.
func TestTickThatIsLate(t *testing.T) {
	bubble(t, func(s *shop) {
		var k ticks
		sch := s.schedule(&k)
		register(t, sch, "report", "0 0 1 1 *")
		at := time.Now().Truncate(time.Minute)
		time.Sleep(time.Until(at.Add(61 * time.Second)))
		sch.At("report", at)
		if all := k.all(); len(all) != 1 || all[0].kind != "missed" || !strings.Contains(all[0].Err.Error(), "1m1s late, at most 1m0s allowed") {
			t.Errorf("a minute late: got %+v", all)
		}
		sch.At("report", at.Add(10*time.Second))
		if all := k.all(); len(all) != 2 || all[1].kind != "enqueued" {
			t.Errorf("51 s late: got %+v", all)
		}
	})
}

func TestUnregister(t *testing.T) {
	bubble(t, func(s *shop) {
		var k ticks
		s.work(&k)
		sch := s.schedule(&k)
		register(t, sch, "a", "@every 10s")
		register(t, sch, "b", "@every 10s")
		time.Sleep(25 * time.Second)
		if err := sch.Unregister("a"); err != nil {
			t.Error(err)
		}
		if err := sch.Unregister("a"); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("got %v", err)
		}
		had := len(k.runs())
		time.Sleep(30 * time.Second)
		if n := len(k.runs()) - had; had < 4 || n != 3 {
			t.Errorf("%d runs before and %d after, %q", had, n, k.runs())
		}
		register(t, sch, "a", "@every 10s") // again
	})
}

// Shutdown breaks off what waits for Redis when it has waited long enough.
func TestSchedulerShutdownIsBounded(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		var k ticks
		rdb := b.Client()
		l, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		sch := asynqlock.NewScheduler(l, asynqlock.WithTrace(traceTo(k.report)), asynqlock.WithLateness(time.Hour))
		register(t, sch, "report", "@every 10s")
		s.start(sch)
		link := b.Link(rdb)
		link.Refuse(errors.New("no route"))
		link.Reset()
		time.Sleep(15 * time.Second)
		began := time.Now()
		sch.Shutdown()
		if took := time.Since(began); took < 8*time.Second || took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if missed := k.of("missed"); len(missed) == 0 {
			t.Errorf("got %+v", k.all())
		}
		_ = l.Shutdown(context.Background())
	})
}

// A tick window of WithClaim: what it grants beyond 10 s waits for the clock of Redis as well, and what it refuses is missed.
func TestClaimOptionsOfAScheduler(t *testing.T) {
	for name, c := range map[string]struct {
		off    time.Duration
		ahead  time.Duration // of the window
		missed bool
	}{
		"a wide window":     {30 * time.Second, time.Minute, false},
		"beyond the window": {90 * time.Second, time.Minute, true},
		"a narrow window":   {5 * time.Second, time.Second, false}, // it has waited until the tick has come
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				var k ticks
				var early atomic.Int64
				sch := asynqlock.NewScheduler(s.locker(), asynqlock.Ahead(c.off),
					asynqlock.WithClaim(tick.WithWindow(time.Hour, c.ahead)),
					asynqlock.WithTrace(traceTo(func(e event) {
						k.report(e)
						early.Store(int64(time.Until(e.Tick)))
					})))
				register(t, sch, "report", "0 * * * *")
				s.start(sch)
				defer sch.Shutdown()
				time.Sleep(time.Hour + 5*time.Minute)
				if all := k.all(); len(all) != 1 || (all[0].kind == "missed") != c.missed {
					t.Fatalf("got %+v", all)
				}
				if d := time.Duration(early.Load()); !c.missed && (d > 0 || d < -50*time.Millisecond) {
					t.Errorf("enqueued %v early", d)
				}
				if c.missed && !errors.Is(k.all()[0].Err, tick.ErrWindow) {
					t.Errorf("got %v", k.all()[0].Err)
				}
			})
		})
	}
}

// As asynq's own, Run ends with a signal, and a Scheduler that ran cannot run again.
func TestSchedulerRunsUntilASignal(t *testing.T) {
	never := asynqlock.NewScheduler(newLocker(t))
	never.Shutdown()
	if err := never.Start(); !errors.Is(err, holdfast.ErrClosed) {
		t.Errorf("Start after Shutdown: %v", err)
	}
	sch := asynqlock.NewScheduler(newLocker(t))
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // for good: one that comes before Run listens, or late, does not end the test
	ended := make(chan error, 1)
	go func() { ended <- sch.Run() }()
	for pending := true; pending; {
		if err := self.Signal(os.Interrupt); err != nil {
			t.Skip(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			pending = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := sch.Run(); !errors.Is(err, holdfast.ErrClosed) {
		t.Errorf("again: got %v", err)
	}
}

func TestRegisterRefuses(t *testing.T) {
	sch := asynqlock.NewScheduler(newLocker(t))
	task := asynq.NewTask("report", nil)
	register(t, sch, "taken", "@daily")
	for name, c := range map[string]struct {
		name, spec string
		task       *asynq.Task
		opts       []asynq.Option
	}{
		"no name":        {"", "@daily", task, nil},
		"a huge name":    {strings.Repeat("n", 1000), "@daily", task, nil},
		"a taken name":   {"taken", "@daily", task, nil},
		"no spec":        {"a", "", task, nil},
		"a wrong spec":   {"a", "61 * * * *", task, nil},
		"six fields":     {"a", "* * * * * *", task, nil},
		"never":          {"a", "0 0 31 2 *", task, nil},
		"no task":        {"a", "@daily", nil, nil},
		"no type":        {"a", "@daily", asynq.NewTask("", nil), nil},
		"a nil option":   {"a", "@daily", task, []asynq.Option{nil}},
		"an ID":          {"a", "@daily", task, []asynq.Option{asynq.TaskID("x")}},
		"a NUL in names": {"a\x00", "@daily", task, nil},
	} {
		if err := sch.Register(c.spec, c.name, c.task, c.opts...); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Any ID of a Scheduler's form is one of a Scheduler, and no other.
func TestTickOfOtherTasks(t *testing.T) {
	bubble(t, func(s *shop) {
		got := make(chan string, 10)
		server := asynq.NewServerFromRedisClient(s.client(), asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 100 * time.Millisecond, Concurrency: 1})
		err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			name, at, ok := asynqlock.Tick(ctx, task)
			got <- fmt.Sprint(name, " ", at.Unix(), " ", ok)
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Shutdown()
		none := fmt.Sprint(" ", time.Time{}.Unix(), " false")
		for id, want := range map[string]string{
			"a@b@1700000000": "a@b 1700000000 true", "@1": none, "a": none, "a@": none, "a@b": none, "a@-1": none, "a@0": none, "a@+5": none, "a@05": none,
		} {
			s.enqueue(asynq.NewTask("report", nil), asynq.TaskID(id))
			if name := <-got; name != want {
				t.Errorf("%q: got %q, want %q", id, name, want)
			}
		}
	})
}
