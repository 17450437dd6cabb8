package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// A task under two locks gives way to either, and keeps neither from others meanwhile.
func TestTwoKeys(t *testing.T) {
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				l := s.locker()
				inner := asynqlock.New(l, "customer", asynqlock.Field("customer"), s.trace())
				customer, err := s.locker().Acquire(context.Background(), holdfast.Key("customer", "c"))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan bool, 2)
				work := inner.Wrap(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
					done <- len(holdfast.Held(ctx)) == 2
					return nil
				}))
				s.serve(s.guard(l), work.ProcessTask)
				s.enqueue(asynq.NewTask("pay", []byte(`{"account": 42, "customer": "c"}`)), opts...)
				time.Sleep(3 * time.Second)
				s.enqueue(asynq.NewTask("pay", []byte(`{"account": 42, "customer": "d"}`)), opts...)
				time.Sleep(3 * time.Second)
				if len(done) != 1 {
					t.Errorf("%d runs, want the other customer's", len(done))
				}
				if err := customer.Release(context.Background()); err != nil {
					t.Error(err)
				}
				s.until("both", func() bool { return len(done) == 2 })
				for range 2 {
					if !<-done {
						t.Error("a run without both locks")
					}
				}
				s.empty()
				s.check(0, 0)
			})
		})
	}
}

// A middleware in front of the Guard sees the deferral, and may wrap it; one behind it sees runs only. A panic of either
// leaves no lock behind.
func TestMiddlewares(t *testing.T) {
	bubble(t, func(s *shop) {
		free := s.hold(s.locker(), 42)
		var mu sync.Mutex // what follows, and s.errs
		var seen []error
		inside, panics := 0, true
		g := s.guard(s.locker())
		server := asynq.NewServerFromRedisClient(s.client(), g.Config(asynq.Config{
			LogLevel: asynq.FatalLevel, Concurrency: 1, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
			ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
				mu.Lock()
				defer mu.Unlock()
				s.errs = append(s.errs, err)
			}),
		}))
		mux := asynq.NewServeMux()
		mux.Use(func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				err := next.ProcessTask(ctx, task)
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, err)
					return fmt.Errorf("outside: %w", err)
				}
				return nil
			})
		}, g.Wrap, func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				mu.Lock()
				defer mu.Unlock()
				if inside++; panics {
					panics = false
					panic("inside")
				}
				return next.ProcessTask(ctx, task)
			})
		})
		mux.HandleFunc("pay", succeed)
		if err := server.Start(mux); err != nil {
			t.Fatal(err)
		}
		s.t.Cleanup(server.Shutdown)
		s.enqueue(pay(42))
		time.Sleep(3 * time.Second)
		mu.Lock()
		var d *asynqlock.DeferredError
		if len(seen) == 0 || !errors.As(seen[0], &d) || !errors.Is(seen[0], holdfast.ErrNotAcquired) || d.Key != holdfast.Key("account", "42") || inside != 0 {
			t.Errorf("outside saw %v, inside %d runs", seen, inside)
		}
		mu.Unlock()
		time.Sleep(20 * time.Second)
		mu.Lock()
		if d = nil; !errors.As(seen[len(seen)-1], &d) || time.Since(d.Since) < 20*time.Second {
			t.Errorf("the wrapped deferral has lost its beginning: %v", seen[len(seen)-1])
		}
		mu.Unlock()
		free()
		s.empty()
		mu.Lock()
		defer mu.Unlock()
		if s.check(1, 0); inside != 2 || !asynq.IsPanicError(s.errs[0]) {
			t.Errorf("%d runs inside, ErrorHandler got %v", inside, s.errs)
		}
	})
}

// What ends a wait is no failure, unless asynq itself counts one.
func TestWaitIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(s *shop, server *asynq.Server, id string)
		failed int
	}{
		"by a shutdown": {func(s *shop, server *asynq.Server, _ string) { server.Shutdown() }, 0},
		"by hand": {func(s *shop, _ *asynq.Server, id string) {
			if err := s.inspector.CancelProcessing(id); err != nil {
				s.t.Error(err)
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				free := s.hold(s.locker(), 42)
				g := s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Wait(time.Hour)))
				server := s.serve(g, succeed, func(c *asynq.Config) { c.ShutdownTimeout = time.Second })
				info := s.enqueue(pay(42))
				time.Sleep(2 * time.Second)
				began := time.Now()
				c.end(s, server, info.ID)
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				s.until("the end of the wait", func() bool { q := s.queued(); return q.Pending+q.Retry == 1 || q.FailedTotal > 0 })
				if c.failed == 0 {
					s.serve(s.guard(s.locker()), succeed)
				}
				free()
				s.until("the run", func() bool { return s.ran() == 1 })
				s.empty()
				s.check(c.failed, 0)
				if c.failed == 0 {
					time.Sleep(5 * time.Second) // the wait of the server that has gone
				}
			})
		})
	}
}
