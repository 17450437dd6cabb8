package asynqlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A busy key costs a task neither a retry nor its place, whatever the task has left of either.
func TestBusyKeyIsNoFailure(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []asynq.Option
		fails  int           // runs of the handler that fail, before the key is busy
		busy   time.Duration // for how long
		policy asynqlock.Policy
		waits  bool // a worker waits
	}{
		"retries left":           {busy: 2 * time.Second},
		"no retries":             {busy: 2 * time.Second, opts: []asynq.Option{asynq.MaxRetry(0)}},
		"the last retry":         {busy: 2 * time.Second, opts: []asynq.Option{asynq.MaxRetry(1)}, fails: 1},
		"a deadline is near":     {busy: 2 * time.Second, opts: []asynq.Option{asynq.Deadline(time.Now().Add(6 * time.Second))}},
		"all of it":              {busy: 2 * time.Second, opts: []asynq.Option{asynq.Deadline(time.Now().Add(6 * time.Second)), asynq.MaxRetry(0)}},
		"a short timeout":        {busy: 2 * time.Second, opts: []asynq.Option{asynq.Timeout(time.Second)}},
		"waits within a timeout": {busy: 2 * time.Second, opts: []asynq.Option{asynq.Timeout(time.Second)}, policy: asynqlock.Wait(time.Hour)},
		"waits, then no retries": {busy: 2 * time.Second, opts: []asynq.Option{asynq.Timeout(2 * time.Second), asynq.MaxRetry(0)}, policy: asynqlock.Wait(time.Hour)},
		"waits for its turn":     {busy: 2 * time.Second, policy: asynqlock.Wait(time.Hour), waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := everywhere
			short := slices.ContainsFunc(c.opts, func(o asynq.Option) bool { return o.Type() == asynq.TimeoutOpt })
			if short || c.policy != (asynqlock.Policy{}) {
				where = bubble // where asynq's part in it is that of the others, and a second is one
			}
			where(t, func(s *shop) {
				t := s.t
				opts := slices.Clone(c.opts)
				for i, o := range opts {
					if o.Type() == asynq.DeadlineOpt { // by the bubble's clock
						opts[i] = asynq.Deadline(time.Now().Add(6 * time.Second))
					}
				}
				var fails atomic.Int32
				fails.Store(int32(c.fails))
				holding := make(chan func(), 1)                  // what frees the key
				elsewhere := s.locker(holdfast.WithTTL(s.lease)) // the delay goes by what its lease has left
				began := time.Now()
				var info *asynq.TaskInfo
				var ran atomic.Value
				work := func(ctx context.Context, task *asynq.Task) error {
					id, _ := asynq.GetTaskID(ctx)
					ran.Store(id)
					if fails.Add(-1) >= 0 {
						go func() { holding <- s.hold(elsewhere, 42) }() // when this run is over
						return errHandler
					}
					if retried, _ := asynq.GetRetryCount(ctx); retried != c.fails {
						t.Errorf("%d retries are spent, want those of the handler, %d", retried, c.fails)
					}
					return nil
				}
				if c.fails == 0 {
					holding <- s.hold(elsewhere, 42)
				}
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(c.policy)), work)
				info = s.enqueue(pay(42), opts...)
				s.until("the runs that fail", func() bool { return s.ran() == c.fails })
				time.Sleep(c.busy)
				if n := s.ran(); n != c.fails {
					t.Fatalf("%d runs while the key was busy", n-c.fails)
				}
				(<-holding)()
				freed := time.Since(began)
				s.until("the run", func() bool { return s.ran() == c.fails+1 })
				if took := time.Since(began) - freed; c.waits && took > time.Second {
					t.Errorf("it ran %v after the key was free, though a worker waited", took)
				}
				s.empty()
				s.check(c.fails, 0)
				if (s.of("deferred") == 0) != c.waits {
					t.Errorf("deferred %d times", s.of("deferred"))
				}
				if ran.Load() != info.ID {
					t.Errorf("%q ran, want %q", ran.Load(), info.ID)
				}
			})
		})
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy   asynqlock.Policy
		runs     int
		kind     string
		failures bool
	}{
		"skip": {policy: asynqlock.Skip(), kind: "skipped"},
		"fail": {policy: asynqlock.Fail(), runs: 1, kind: "failed", failures: true},

		"wait no time": {policy: asynqlock.Wait(0), runs: 1, kind: "deferred"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				free := s.hold(s.locker(holdfast.WithLabel("somebody")), 42)
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(c.policy)), succeed)
				s.enqueue(pay(42))
				s.until("the event", func() bool { return s.of(c.kind) > 0 })
				time.Sleep(10 * time.Second)
				free()
				s.empty()
				if n := s.ran(); n != c.runs {
					t.Errorf("%d runs, want %d", n, c.runs)
				}
				var held *holdfast.HeldError
				if e := s.events[0]; !errors.As(e.Err, &held) || held.Label != "somebody" || e.Key != holdfast.Key("account", "42") {
					t.Errorf("got event %+v", e)
				}
				s.check(s.of("failed"), 0)
				if (s.of("failed") > 0) != c.failures {
					t.Errorf("%d failures", s.of("failed"))
				}
				if c.failures && !errors.Is(s.errs[0], holdfast.ErrNotAcquired) {
					t.Errorf("ErrorHandler got %v", s.errs[0])
				}
			})
		})
	}
}

// Deferral ends some day, and then a busy key is a failure like another, that archives with the last retry.
func TestDeferralIsBounded(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"with retries": 2, "without": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				defer s.hold(s.locker(), 42)()
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDeferral(30*time.Second))), succeed)
				began := time.Now()
				s.enqueue(pay(42), asynq.MaxRetry(retries))
				for s.of("failed") == 0 {
					time.Sleep(time.Second)
				}
				if took := time.Since(began); took < 30*time.Second || took > time.Minute {
					t.Errorf("deferred for %v, want 30 s and a delay", took)
				}
				for s.of("failed") <= retries || s.queued().Archived == 0 {
					time.Sleep(time.Second)
				}
				s.check(retries+1, 1)
				info, err := s.inspector.ListArchivedTasks(queue)
				if err != nil || len(info) != 1 || !strings.Contains(info[0].LastErr, "is too long") {
					t.Errorf("got %v, %v", info, err)
				}
				before := s.of("deferred")
				if err := s.inspector.RunTask(queue, info[0].ID); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if q := s.queued(); q.Archived != 0 || s.of("deferred") == before {
					t.Errorf("it is not deferred anew when it is run by hand: %+v", q)
				}
			})
		})
	}
}

// The next task of a key does not wait for its delay when the server that deferred it releases the key.
func TestReleaseWakesTheNext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				work := func(context.Context, *asynq.Task) error {
					time.Sleep(5 * time.Second)
					return nil
				}
				s.serve(s.guard(s.locker()), work, func(c *asynq.Config) { c.Concurrency = 4 })
				began := time.Now()
				for range 4 {
					s.enqueue(pay(42), opts...)
				}
				s.until("all runs", func() bool { return s.ran() == 4 })
				if took := time.Since(began); took > 17*time.Second {
					t.Errorf("the fourth began after %v, want the time of three", took)
				}
				s.empty()
				s.check(0, 0)
			})
		})
	}
}

// A release that comes while a task gives way wakes it all the same.
func TestReleaseInTheMiddleOfADeferral(t *testing.T) {
	noting := func(args []string) bool {
		return len(args) > 8 && args[2] == "4" && strings.HasPrefix(args[4], "asynqlock:deferred:")
	}
	archiving := func(args []string) bool { return len(args) > 12 && slices.Contains(args, "asynq:{default}:archived") }
	putting := func(args []string) bool { return len(args) > 10 && slices.Contains(args, "asynq:{default}:retry") }
	for name, c := range map[string]struct {
		at   func(args []string) bool // the command that the release comes before
		opts []asynq.Option
	}{
		"before the note":             {at: noting},
		"before the note, no retries": {at: noting, opts: []asynq.Option{asynq.MaxRetry(0)}},
		"before asynq puts it back":   {at: putting},
		"before asynq archives it":    {at: archiving, opts: []asynq.Option{asynq.MaxRetry(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleWith(t, func(s *shop, b *servertest.Bubble) {
				holding, free := make(chan struct{}), make(chan struct{})
				s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
					close(holding)
					<-free
					return nil
				}, func(c *asynq.Config) { c.Queues = map[string]int{"holder": 1} })
				s.enqueue(pay(42), asynq.Queue("holder"))
				<-holding
				var once sync.Once
				s.client = func() *redis.Client {
					rdb := b.Client()
					b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
						if c.at(args) {
							once.Do(func() {
								close(free)
								time.Sleep(50 * time.Millisecond)
							})
						}
						return servertest.Pass
					})
					return rdb
				}
				s.serve(s.guard(s.locker()), succeed)
				began := time.Now()
				s.enqueue(pay(42), c.opts...)
				s.until("the run", func() bool { return s.ran() == 2 })
				if took := time.Since(began); took > time.Second {
					t.Errorf("it ran after %v", took)
				}
				s.empty()
				s.check(0, 0)
			})
		})
	}
}

// Tasks of one key that come back and give way do not keep the workers from those of other keys.
func TestHotKeyDoesNotStarveOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		defer s.hold(s.locker(), 1)()
		workers := often(1, 2)
		s.serve(s.guard(s.locker()), succeed, func(c *asynq.Config) { c.Concurrency = workers })
		for range 50 * workers {
			s.enqueue(pay(1), asynq.MaxRetry(0))
			s.enqueue(pay(1))
		}
		time.Sleep(time.Minute) // they have come back by now
		for i := range 20 {
			s.enqueue(pay(100 + i))
		}
		began := time.Now()
		s.until("the others", func() bool { return s.ran() == 20 })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("they took %v", took)
		}
		// Between asynq's word for a task without retries left and its return to the queue, it is archived.
		s.until("the deferrals under way", func() bool { return s.queued().Archived == 0 })
		s.check(0, 0)
	})
}
