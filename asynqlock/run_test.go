package asynqlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// asynq gives up a handler that outlives its timeout, and runs the task again beside it.
func TestAbandonedHandlerKeepsTheLock(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		t := s.t
		var runs atomic.Int32
		deaf := func(context.Context, *asynq.Task) error {
			n := int(runs.Add(1))
			time.Sleep(2500 * time.Millisecond)
			for range 1000 { // until the next run has met this one; the last has none
				if n == 3 || s.of("deferred") >= n {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		}
		s.serve(s.guard(s.locker(holdfast.WithTTL(time.Second))), deaf)
		s.enqueue(pay(42), asynq.Timeout(time.Second), asynq.MaxRetry(2))
		// Without retries left it is in the archive for a moment when it is deferred, too.
		s.until("archived by its timeouts", func() bool { return s.ran() == 3 && s.queued().Archived == 1 })
		s.check(3, 1) // each run was one too long
		if n := s.ran(); n != 3 {
			t.Errorf("%d runs, want 3", n)
		}
		if s.of("deferred") == 0 {
			t.Error("no run met the one before: the test tests nothing")
		}
		time.Sleep(3 * time.Second)
	})
}

// A server that shuts down puts a task back while its handler is still at work.
func TestShutdownUnderALiveHandler(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		var ended atomic.Int64 // of the run before
		gaps := make(chan time.Duration, 10)
		deaf := func(context.Context, *asynq.Task) error {
			gaps <- time.Duration(time.Now().UnixNano() - ended.Load())
			time.Sleep(2 * time.Second)
			ended.Store(time.Now().UnixNano())
			return nil
		}
		impatient := func(c *asynq.Config) { c.ShutdownTimeout = time.Second }
		first := s.serve(s.guard(s.locker()), deaf, impatient)
		s.enqueue(pay(42))
		s.until("the first run", func() bool { return s.ran() == 1 })
		first.Shutdown()
		s.serve(s.guard(s.locker()), deaf)
		s.until("the second run", func() bool { return s.ran() == 2 })
		if <-gaps; len(gaps) != 1 || <-gaps > time.Second {
			s.t.Error("the end of the first run did not wake the second")
		}
		s.empty()
		s.check(0, 0)
	})
}

func TestPanicReleases(t *testing.T) {
	bubble(t, func(s *shop) {
		s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
			if s.ran() == 1 {
				panic("boom")
			}
			return nil
		})
		s.enqueue(pay(42))
		s.until("the second run", func() bool { return s.ran() == 2 })
		s.empty()
		s.check(1, 0)
		if !asynq.IsPanicError(s.errs[0]) {
			t.Errorf("ErrorHandler got %v", s.errs[0])
		}
		if n := s.of("deferred"); n > 0 {
			t.Errorf("the second run was deferred %d times: the panic left the lock", n)
		}
	})
}

// With holdfast.WithProgress a handler that reports keeps its lock for as long as it likes. One that hangs loses it, which is
// a loss like any other: its task is tried again.
func TestTaskThatHangs(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		bubble(t, func(s *shop) {
			s.serve(s.guard(s.locker(), asynqlock.WithLock(holdfast.WithProgress(5*time.Second))), func(ctx context.Context, _ *asynq.Task) error {
				if s.ran() > 1 {
					return nil
				}
				for range 10 {
					time.Sleep(4 * time.Second)
					holdfast.Progress(ctx)
				}
				if ctx.Err() != nil {
					t.Errorf("a handler that reports: %v", context.Cause(ctx))
				}
				if began := time.Now(); hangs {
					<-ctx.Done()
					if d := time.Since(began); d != 5*time.Second || !errors.Is(context.Cause(ctx), holdfast.ErrNoProgress) {
						t.Errorf("the context ended after %v with %v", d, context.Cause(ctx))
					}
				}
				return nil
			})
			s.enqueue(pay(42))
			runs := 1
			if hangs {
				runs = 2
				s.until("the event", func() bool { return s.of("lost") == 1 })
			}
			s.until("the runs", func() bool { return s.ran() == runs })
			time.Sleep(time.Minute)
			s.check(runs-1, 0)
			if n := s.of("lost"); n != runs-1 || n > 0 && (!errors.Is(s.errs[0], holdfast.ErrLost) || !errors.Is(s.errs[0], holdfast.ErrNoProgress)) {
				t.Errorf("hangs: %v, %d losses, ErrorHandler got %v", hangs, n, s.errs)
			}
		})
	}
}

func TestLostLock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []asynqlock.Option
		own  error // of the handler
		runs int
		want []error // what ErrorHandler gets
	}{
		"success is a failure": {runs: 2, want: []error{holdfast.ErrLost}},
		"an error stays":       {own: errHandler, runs: 2, want: []error{holdfast.ErrLost, errHandler}},
		"unless told otherwise": {runs: 1, opts: []asynqlock.Option{
			asynqlock.WithErrorHandler(func(_ context.Context, task *asynq.Task, lost error) error {
				if task.Type() != "pay" || !errors.Is(lost, holdfast.ErrLost) {
					return errors.New("wrong arguments")
				}
				return nil
			}),
		}},
		"or otherwise again": {runs: 1, want: []error{asynq.SkipRetry}, opts: []asynqlock.Option{
			asynqlock.WithErrorHandler(func(context.Context, *asynq.Task, error) error { return asynq.SkipRetry }),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				rdb := s.client()
				s.serve(s.guard(s.locker(), c.opts...), func(ctx context.Context, _ *asynq.Task) error {
					if s.ran() > 1 {
						return nil
					}
					if err := rdb.Del(ctx, holdfast.Key("account", "42")).Err(); err != nil {
						t.Error(err)
					}
					<-ctx.Done() // a renewal finds out
					if !errors.Is(context.Cause(ctx), holdfast.ErrLost) {
						t.Errorf("the context ended with %v", context.Cause(ctx))
					}
					return c.own
				})
				s.enqueue(pay(42))
				s.until("the event", func() bool { return s.of("lost") == 1 })
				s.until("the runs", func() bool { return s.ran() == c.runs })
				time.Sleep(10 * time.Second)
				archived := 0
				if len(c.want) > 0 && c.want[0] == asynq.SkipRetry {
					archived = 1
				}
				s.check(min(len(c.want), 1), archived)
				for _, want := range c.want {
					if !errors.Is(s.errs[0], want) {
						t.Errorf("ErrorHandler got %v, want %v", s.errs[0], want)
					}
				}
			})
		})
	}
}

// What the Guard fails a task with is for the error handler to decide; what the handler fails with is not.
func TestErrorHandlerDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts    []asynqlock.Option
		task    *asynq.Task
		work    error
		decides error // in place of want; nil: a success
		want    error // what the handler is asked about; nil: nothing
		state   asynq.TaskState
	}{
		"a busy key is a success": {opts: []asynqlock.Option{asynqlock.WithBusy(asynqlock.Fail())}, task: pay(42), want: holdfast.ErrNotAcquired,
			state: asynq.TaskStateCompleted},
		"a busy key is final": {opts: []asynqlock.Option{asynqlock.WithBusy(asynqlock.Fail())}, task: pay(42), want: holdfast.ErrNotAcquired,
			decides: asynq.SkipRetry, state: asynq.TaskStateArchived},
		"deferred for too long": {opts: []asynqlock.Option{asynqlock.WithBusy(asynqlock.Wait(0).MaxDeferral(time.Nanosecond))}, task: pay(42),
			want: holdfast.ErrNotAcquired, state: asynq.TaskStateCompleted},
		"no name":           {task: asynq.NewTask("pay", nil), want: holdfast.ErrInvalid, state: asynq.TaskStateCompleted},
		"the handler's own": {task: pay(7), work: errHandler, state: asynq.TaskStateRetry},
		"a deferral":        {task: pay(42), state: asynq.TaskStateRetry},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				free := s.hold(s.locker(), 42)
				defer free()
				asked := make(chan error, 100)
				opts := append(c.opts, asynqlock.WithErrorHandler(func(_ context.Context, task *asynq.Task, err error) error {
					if task.Type() != "pay" {
						t.Errorf("asked about %v", task)
					}
					asked <- err
					return c.decides
				}))
				s.serve(s.guard(s.locker(), opts...), func(context.Context, *asynq.Task) error { return c.work }, func(c *asynq.Config) {
					c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
				})
				info := s.enqueue(c.task, asynq.Retention(time.Hour))
				s.until("the outcome", func() bool {
					got, err := s.inspector.GetTaskInfo(queue, info.ID)
					return err == nil && got.State == c.state
				})
				if c.want == nil && len(asked) > 0 {
					t.Errorf("asked about %v", <-asked)
				}
				if c.want != nil && (len(asked) != 1 || !errors.Is(<-asked, c.want)) {
					t.Errorf("asked %d times, want once about %v", len(asked), c.want)
				}
			})
		})
	}
}

// A Locker that is shut down before the server gives up the locks of its handlers when it loses patience.
func TestLockerShutDownFirst(t *testing.T) {
	bubble(t, func(s *shop) {
		l, err := holdfast.New(s.client())
		if err != nil {
			t.Fatal(err)
		}
		s.serve(s.guard(l), func(context.Context, *asynq.Task) error {
			time.Sleep(10 * time.Second)
			return nil
		})
		s.enqueue(pay(42))
		s.until("the run", func() bool { return s.ran() == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
		s.until("the loss", func() bool { return s.of("lost") == 1 })
		if err := s.events[0].Err; !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("got %v", err)
		}
		s.until("the deferral of the next try", func() bool { return s.of("deferred") > 0 })
		s.check(1, 0)
	})
}

// A task that others may run beside must not go on as if it were alone.
func TestGuardUnderALockThatOthersMayHave(t *testing.T) {
	for name, tt := range map[string]struct {
		outer, inner []asynqlock.Option
		runs         bool
	}{
		"a limit, wanted alone":      {[]asynqlock.Option{asynqlock.WithLimit(2)}, nil, false},
		"a limit, wanted with it":    {[]asynqlock.Option{asynqlock.WithLimit(2)}, []asynqlock.Option{asynqlock.WithLimit(2)}, true},
		"alone, wanted with a limit": {nil, []asynqlock.Option{asynqlock.WithLimit(2)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				l := s.locker()
				inner := asynqlock.New(l, "account", asynqlock.Field("account"), tt.inner...)
				var ran atomic.Int32
				s.serve(s.guard(l, tt.outer...), inner.Wrap(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
					ran.Add(1)
					return nil
				})).ProcessTask)
				s.enqueue(pay(42), asynq.MaxRetry(0))
				s.empty()
				if tt.runs {
					s.check(0, 0)
				} else if s.check(1, 1); !errors.Is(s.errs[0], holdfast.ErrSelfDeadlock) {
					s.t.Errorf("got %v, want ErrSelfDeadlock", s.errs[0])
				}
				if n := ran.Load(); n != map[bool]int32{true: 1}[tt.runs] {
					s.t.Errorf("%d runs", n)
				}
			})
		})
	}
}

// The lock is in the handler's context, with asynq's own values, and a Guard twice is one.
func TestContextOfTheHandler(t *testing.T) {
	bubble(t, func(s *shop) {
		l := s.locker()
		g := s.guard(l)
		other := asynqlock.New(l, "customer", asynqlock.Field("customer"))
		same := asynqlock.New(l, "account", asynqlock.Field("account"))
		ran := make(chan struct{})
		inner := same.Wrap(other.Wrap(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			defer close(ran)
			held := holdfast.Held(ctx)
			if len(held) != 2 || held[0].Key() != holdfast.Key("customer", "c") || held[1].Key() != holdfast.Key("account", "42") ||
				held[0].Token() <= 0 {
				t.Errorf("the context holds %v", held)
			}
			if id, ok := asynq.GetTaskID(ctx); !ok || id == "" {
				t.Error("no task ID in the context")
			}
			return nil
		})))
		s.serve(g, inner.ProcessTask)
		s.enqueue(asynq.NewTask("pay", []byte(`{"account": 42, "customer": "c"}`)))
		<-ran
		s.empty()
		s.check(0, 0)
	})
}
