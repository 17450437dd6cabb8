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

// apart has the locks on a Redis of their own, to which fn gets the link.
func apart(t *testing.T, opts []asynqlock.Option, fn func(s *shop, locks *servertest.Link)) {
	t.Helper()
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		locks := servertest.NewBubble(s.t)
		rdb := locks.Client()
		l, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		s.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = l.Shutdown(ctx) // what could not be released expires
		})
		s.serve(s.guard(l, append(opts, asynqlock.WithRedis(s.client()))...), succeed)
		fn(s, locks.Link(rdb))
	})
}

// Without a verdict of Redis no task runs, and none is the worse for it.
func TestLocksAreUnavailable(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{"retries left": nil, "no retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			apart(t, nil, func(s *shop, locks *servertest.Link) {
				locks.Refuse(errors.New("no route"))
				s.enqueue(pay(42), opts...)
				time.Sleep(time.Duration(often(20, 60)) * time.Second)
				if n := s.ran(); n > 0 {
					t.Errorf("%d runs without a lock", n)
				}
				for _, e := range s.events {
					if !errors.Is(e.Err, holdfast.ErrUnavailable) {
						t.Errorf("got %+v", e)
					}
				}
				locks.Refuse(nil)
				s.empty()
				s.check(0, 0)
				if n := s.ran(); n != 1 {
					t.Errorf("%d runs", n)
				}
			})
		})
	}
}

func TestFailOpen(t *testing.T) {
	apart(t, []asynqlock.Option{asynqlock.WithFailOpen()}, func(s *shop, locks *servertest.Link) {
		locks.Refuse(errors.New("no route"))
		s.enqueue(pay(42))
		s.empty()
		s.check(0, 0)
		if s.ran() != 1 || s.of("unlocked") != 1 {
			t.Errorf("%d runs, events %v", s.ran(), s.events)
		}
	})
}

// What was done under the lock is done, also where Redis does not confirm the release.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		locks := servertest.NewBubble(s.t)
		rdb := locks.Client(func(o *redis.Options) { o.DialTimeout = time.Second })
		link := locks.Link(rdb)
		l, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Shutdown(context.Background()) }()
		s.serve(s.guard(l, asynqlock.WithRedis(s.client())), func(context.Context, *asynq.Task) error {
			link.Refuse(errors.New("no route"))
			link.Reset()
			return nil
		})
		s.enqueue(pay(42))
		s.until("the event", func() bool { return s.of("unreleased") == 1 })
		s.empty()
		s.check(0, 0)
	})
}

// The Redis of the Locker is not asynq's: that shows with the first task that gives way.
func TestWrongRedis(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		locks := servertest.NewBubble(s.t)
		l, err := holdfast.New(locks.Client())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Shutdown(context.Background()) }()
		defer s.hold(l, 42)()
		s.serve(s.guard(l), succeed, func(c *asynq.Config) {
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
		})
		s.enqueue(pay(42))
		time.Sleep(10 * time.Second)
		s.check(1, 0)
		if !errors.Is(s.errs[0], asynq.ErrTaskNotFound) {
			t.Errorf("got %v", s.errs[0])
		}
	})
}

// A Redis that forgets everything, as one that restarts without a file, takes the tasks along and not the server: what is
// enqueued afterwards runs, one at a time.
func TestRedisForgets(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			select {
			case <-time.After(3 * time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		for range 5 {
			s.enqueue(pay(42))
		}
		s.until("a run", func() bool { return s.ran() == 1 })
		b.Restart()
		if err := s.client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		s.mu.Lock()
		s.most, s.errs = 0, nil // the run that lost its lock is one too many
		s.mu.Unlock()
		had := s.ran()
		s.tasks = asynq.NewClientFromRedisClient(s.client()) // one that has been about tells the Inspector of no queue any more
		for i := range 5 {
			s.enqueue(pay(42), asynq.MaxRetry(i%2))
		}
		s.until("the runs", func() bool { return s.ran() == had+5 })
		s.empty()
		s.check(0, 0)
	})
}

// What was enqueued is enqueued once, also where Redis' answer is lost and go-redis or the Guard says it again.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	lossy := func(b *servertest.Bubble, text string) (*redis.Client, *atomic.Int32) {
		rdb, lost := b.Client(func(o *redis.Options) { o.MaxRetries = -1 }), new(atomic.Int32)
		b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
			// Of the first try, by EVALSHA, there is only that the server does not have the script.
			if strings.EqualFold(args[0], "eval") && slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, text) }) && lost.CompareAndSwap(0, 1) {
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		return rdb, lost
	}
	t.Run("of what keeps a task", func(t *testing.T) {
		bubbleWith(t, func(s *shop, b *servertest.Bubble) {
			free := s.hold(s.locker(), 42)
			rdb, lost := lossy(b, "because it has no retries left")
			s.serve(s.guard(s.locker(), asynqlock.WithRedis(rdb)), succeed)
			s.enqueue(pay(42), asynq.MaxRetry(0))
			s.until("the deferral", func() bool { return s.of("deferred") == 1 })
			free()
			s.empty()
			if s.check(0, 0); s.ran() != 1 || lost.Load() != 1 {
				t.Errorf("%d runs, %d lost answers", s.ran(), lost.Load())
			}
		})
	})
	t.Run("of a tick", func(t *testing.T) {
		bubbleWith(t, func(s *shop, b *servertest.Bubble) {
			var k ticks
			rdb, lost := lossy(b, ":t:report@")
			register(t, s.schedule(&k, asynqlock.WithRedis(rdb)), "report", "@every 10s")
			time.Sleep(25 * time.Second)
			if q := s.queued(); len(k.of("enqueued")) != 2 || q.Pending != 2 || lost.Load() != 1 {
				t.Errorf("got %+v, %+v, %d lost answers", k.all(), q, lost.Load())
			}
		})
	})
	t.Run("of a deferral, and then the task is gone", func(t *testing.T) {
		bubbleWith(t, func(s *shop, b *servertest.Bubble) {
			defer s.hold(s.locker(), 42)()
			all, rdb := s.client(), b.Client(func(o *redis.Options) { o.MaxRetries = -1 })
			var once sync.Once
			b.Link(rdb).OnCommand(func(args []string) (v servertest.Verdict) {
				if strings.EqualFold(args[0], "eval") && slices.Contains(args, "asynq:{"+queue+"}:t:gone") {
					once.Do(func() {
						all.Del(context.Background(), "asynq:{"+queue+"}:t:gone")
						v = servertest.LoseReplyAndClose
					})
				}
				return v
			})
			s.serve(s.guard(s.locker(), asynqlock.WithRedis(rdb)), succeed)
			s.enqueue(pay(42), asynq.TaskID("gone"), asynq.MaxRetry(0))
			time.Sleep(10 * time.Second)
			if s.mu.Lock(); len(s.errs) != 1 || !errors.Is(s.errs[0], asynq.ErrTaskNotFound) || !errors.Is(s.errs[0], holdfast.ErrNotAcquired) {
				t.Errorf("ErrorHandler got %v", s.errs)
			}
			s.mu.Unlock()
		})
	})
	t.Run("of a claim", func(t *testing.T) {
		bubbleWith(t, func(s *shop, b *servertest.Bubble) {
			var k ticks
			rdb := b.Client()
			began := time.Now().Truncate(10 * time.Second).Add(20 * time.Second) // the second tick
			b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
				if strings.Contains(strings.Join(args, " "), "report") && time.Since(began) >= 0 && time.Since(began) < 2*time.Second {
					return servertest.LoseReplyAndClose
				}
				return servertest.Pass
			})
			l, err := holdfast.New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Shutdown(context.Background()) }()
			sch := asynqlock.NewScheduler(l, asynqlock.WithTrace(traceTo(k.report)))
			defer sch.Shutdown()
			s.start(sch)
			register(t, sch, "report", "@every 10s")
			time.Sleep(29 * time.Second)
			// The claim is asked for again, as the same one.
			if all := k.all(); len(all) != 2 || all[1].kind != "enqueued" {
				t.Errorf("got %+v", all)
			}
		})
	})
}
