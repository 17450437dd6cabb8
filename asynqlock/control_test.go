package asynqlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// The traps are there: without the Guard, asynq runs one task several times at once, Unique or not, and its schedulers
// enqueue a tick as often as there are replicas.
func TestWithoutTheGuard(t *testing.T) {
	t.Parallel()
	deaf := func(context.Context, *asynq.Task) error {
		time.Sleep(5 * time.Second)
		return nil
	}
	serve := func(s *shop) *asynq.Server {
		server := asynq.NewServerFromRedisClient(s.client(), asynq.Config{
			LogLevel: asynq.FatalLevel, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
			ShutdownTimeout: time.Second, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
		})
		err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			defer s.begin(task)()
			return deaf(ctx, task)
		}))
		if err != nil {
			t.Fatal(err)
		}
		s.t.Cleanup(server.Shutdown)
		return server
	}
	t.Run("a timeout", func(t *testing.T) {
		bubble(t, func(s *shop) {
			serve(s)
			s.enqueue(pay(42), asynq.Timeout(time.Second), asynq.MaxRetry(2), asynq.Unique(time.Hour))
			s.until("three runs", func() bool { return s.ran() == 3 })
			time.Sleep(10 * time.Second)
			if s.most < 2 {
				t.Errorf("%d runs at once: the trap is gone", s.most)
			}
		})
	})
	t.Run("a shutdown", func(t *testing.T) {
		bubble(t, func(s *shop) {
			first := serve(s)
			s.enqueue(pay(42), asynq.Unique(time.Hour))
			s.until("a run", func() bool { return s.ran() == 1 })
			first.Shutdown()
			serve(s)
			s.until("another", func() bool { return s.ran() == 2 })
			time.Sleep(10 * time.Second)
			if s.most != 2 {
				t.Errorf("%d runs at once: the trap is gone", s.most)
			}
		})
	})
	t.Run("schedulers", func(t *testing.T) {
		bubble(t, func(s *shop) {
			server := asynq.NewServerFromRedisClient(s.client(), asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond})
			runs := make(chan time.Time, 100)
			err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { runs <- time.Now(); return nil }))
			if err != nil {
				t.Fatal(err)
			}
			s.t.Cleanup(server.Shutdown)
			for range 3 {
				time.Sleep(time.Second) // what "@every" is counted from
				sch := asynq.NewSchedulerFromRedisClient(s.client(), &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
				if _, err := sch.Register("@every 10s", asynq.NewTask("report", nil), asynq.Unique(time.Minute)); err != nil {
					t.Fatal(err)
				}
				if err := sch.Start(); err != nil {
					t.Fatal(err)
				}
				s.t.Cleanup(sch.Shutdown)
			}
			time.Sleep(33 * time.Second)
			if len(runs) != 9 {
				t.Errorf("%d runs of 3 ticks: the trap is gone", len(runs))
			}
		})
	})
}

// Unique keeps an equal task out while one is in the queue, deferred ones included, and Guard or not: for as long as
// it was said to.
func TestUniqueBesideTheGuard(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"deferred": 25, "without retries": 0} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(s *shop) {
				free := s.hold(s.locker(holdfast.WithTTL(s.lease)), 42) // the delay goes by what its lease has left
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second))), succeed)
				opts := []asynq.Option{asynq.Unique(time.Hour), asynq.MaxRetry(retries), asynq.Retention(time.Hour)}
				s.enqueue(pay(42), opts...)
				locked, err := s.client().Keys(context.Background(), "asynq:*:unique:*").Result()
				if err != nil || len(locked) != 1 {
					s.t.Fatalf("locked %q, %v", locked, err)
				}
				for range 3 { // it gives way, again and again
					n := s.of("deferred") + s.of("deferred")
					s.until("it gives way", func() bool { return s.of("deferred") > n })
					s.until("it is put back", func() bool { q := s.queued(); return q.Retry == 1 && q.Active == 0 })
					if _, err := s.tasks.Enqueue(pay(42), opts...); !errors.Is(err, asynq.ErrDuplicateTask) {
						s.t.Errorf("got %v, want %v", err, asynq.ErrDuplicateTask)
					}
					if left := s.client().TTL(context.Background(), locked[0]).Val(); left <= 0 || left > time.Hour {
						s.t.Errorf("locked for %v more", left)
					}
				}
				if q := s.queued(); q.Size != 1 {
					s.t.Errorf("the queue has %d tasks, want the one: %+v", q.Size, q)
				}
				free()
				s.until("the end", func() bool { q := s.queued(); return s.ran() == 1 && q.Size == q.Completed })
				s.enqueue(pay(42), opts...) // and afterwards it is free
				s.until("the next", func() bool { return s.ran() == 2 })
				s.check(0, 0)
			})
		})
	}
}

// What a group's aggregator makes is a task like another.
func TestAggregatedTasks(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		free := s.hold(s.locker(holdfast.WithTTL(s.lease)), 42) // the delay goes by what its lease has left
		group := func(c *asynq.Config) {
			c.GroupGracePeriod, c.GroupMaxSize = time.Second, 3
			c.GroupAggregator = asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task { return pay(42) })
		}
		work := func(context.Context, *asynq.Task) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		for range 2 {
			s.serve(s.guard(s.locker()), work, group)
		}
		for range 12 {
			s.enqueue(asynq.NewTask("pay", nil), asynq.Group("42"))
		}
		s.until("deferrals", func() bool { return s.of("deferred") >= 4 })
		if n := s.ran(); n > 0 {
			s.t.Errorf("%d runs while the key was busy", n)
		}
		free()
		s.until("all of them", func() bool { q := s.queued(); return q.Size == 0 && q.Groups == 0 })
		if n := s.ran(); n != 4 {
			s.t.Errorf("%d runs, want 4", n)
		}
		s.check(0, 0)
	})
}
