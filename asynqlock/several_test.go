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
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// also is the second account of a transfer.
func also() asynqlock.Option { return asynqlock.WithAlso("account", asynqlock.Field("to")) }

func transfer(from, to int, opts ...asynq.Option) *asynq.Task {
	return asynq.NewTask("pay", fmt.Appendf(nil, `{"account": %d, "to": %d}`, from, to), opts...)
}

// Transfers in all directions among three accounts, on two servers: no two of an account overlap, no retry is spent, and a task
// that gave way does not wait for its delay.
func TestTransfers(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		var mu sync.Mutex
		busy := map[string]int{}
		work := func(ctx context.Context, _ *asynq.Task) error {
			held := holdfast.Held(ctx)
			for _, by := range []int{1, -1} {
				mu.Lock()
				for _, lock := range held {
					if busy[lock.Key()] += by; busy[lock.Key()] > 1 {
						t.Errorf("two runs of %s at once", lock.Key())
					}
				}
				mu.Unlock()
				if by == 1 {
					time.Sleep(20 * time.Millisecond)
				}
			}
			if len(held) != 2 {
				t.Errorf("a run with %d locks", len(held))
			}
			return nil
		}
		for range 2 {
			s.serve(s.guard(s.locker(), also()), work)
		}
		began := time.Now()
		for i := range 30 {
			s.enqueue(transfer(i%3, (i+1+i/3%2)%3))
		}
		s.empty()
		if took := time.Since(began); took > 15*time.Second+6*s.lease { // on a busy machine one may not be woken, and come back by itself
			t.Errorf("it took %v: tasks were not woken", took)
		}
		if q := s.queued(); s.ran() != 30 || q.FailedTotal != 0 || q.Archived != 0 {
			t.Errorf("%d runs, %+v", s.ran(), q)
		}
	})
}

// Whichever key is busy: the task gives way there, holds no other meanwhile, and is woken when that is free, also where it finds
// the other one busy then.
func TestTaskGivesWayAtTheBusyKey(t *testing.T) {
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []int{1, 2} {
				bubble(t, func(s *shop) {
					l := holdfast.WithTTL(time.Minute) // the delay goes by it
					g := s.guard(s.locker(l, holdfast.WithPrefix("shop:")), also())
					leave := map[int]chan struct{}{1: make(chan struct{}), 2: make(chan struct{}), 3: make(chan struct{})}
					s.serve(g, func(_ context.Context, task *asynq.Task) error {
						if account := accountOf(task); account != "3" {
							return nil
						}
						var to int
						fmt.Sscanf(string(task.Payload()), `{"account": 3, "to": %d}`, &to)
						<-leave[to]
						return nil
					})
					second := 3 - first
					s.enqueue(asynq.NewTask("pay", fmt.Appendf(nil, `{"account": 3, "to": %d}`, first)))
					s.until("the holder", func() bool { return s.ran() == 1 })
					s.enqueue(transfer(1, 2), opts...)
					s.until("the deferral", func() bool { return s.of("deferred") == 1 })
					s.mu.Lock()
					if e := s.events[0]; e.Key != fmt.Sprint("account:", first) || heldKey(e.Err) != fmt.Sprint("shop:account:", first) {
						t.Errorf("it gave way at %q: %v", e.Key, e.Err)
					}
					s.mu.Unlock()
					time.Sleep(100 * time.Millisecond)
					s.hold(s.locker(holdfast.WithPrefix("shop:")), second)() // it is free
					s.enqueue(transfer(second, 4))
					s.until("the run of the other", func() bool { return s.ran() == 2 })
					began := time.Now()
					close(leave[first])
					s.until("the transfer", func() bool { return s.ran() == 3 })
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("it was woken after %v", took)
					}
					s.empty()
					s.check(0, 0)
				})
			}
		})
	}
}

func heldKey(err error) string {
	var held *holdfast.HeldError
	errors.As(err, &held)
	if held == nil {
		return ""
	}
	return held.Key
}

// A task that was woken for one key, and finds another busy, has the next one woken for the first: it would wait for its delay.
func TestTurnIsPassedOn(t *testing.T) {
	bubble(t, func(s *shop) {
		l := holdfast.WithTTL(time.Minute)
		ends := map[string]chan struct{}{"1": make(chan struct{}), "2": make(chan struct{})}
		s.serve(s.guard(s.locker(l), asynqlock.WithAlso("account", func(task *asynq.Task) ([]string, error) {
			parts, err := asynqlock.Field("to")(task)
			if err != nil { // a task of one account
				return asynqlock.Field("account")(task)
			}
			return parts, nil
		})), func(_ context.Context, task *asynq.Task) error {
			if task.Headers()["holds"] != "" {
				<-ends[accountOf(task)]
			}
			return nil
		})
		holds := func(account int) {
			s.enqueue(asynq.NewTaskWithHeaders("pay", fmt.Appendf(nil, `{"account": %d}`, account), map[string]string{"holds": "yes"}))
		}
		holds(1)
		s.until("the first holder", func() bool { return s.ran() == 1 })
		s.enqueue(transfer(1, 2))
		s.until("the transfer to give way", func() bool { return s.of("deferred") == 1 })
		holds(2)
		s.until("the second holder", func() bool { return s.ran() == 2 })
		s.enqueue(pay(1))
		s.until("the payment to give way", func() bool { return s.of("deferred") == 2 })
		began := time.Now()
		close(ends["1"]) // wakes the transfer, which waits for 2 now
		s.until("the payment", func() bool { return s.ran() == 3 })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the payment was woken after %v", took)
		}
		began = time.Now()
		close(ends["2"])
		s.until("the transfer", func() bool { return s.ran() == 4 })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the transfer was woken after %v", took)
		}
		s.empty()
		s.check(0, 0)
	})
}

// A task whose keys are both busy waits at the first of them only. Woken there, it finds that somebody was quicker, has that key
// while it still hopes for it, and is refused at the other: it waits there from then on, for as long as that takes, and no longer
// at the first.
func TestWokenTaskWaitsWhereItIsRefusedNext(t *testing.T) {
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				ctx, rdb := context.Background(), s.client()
				ends := map[string]chan struct{}{"5": make(chan struct{}), "6": make(chan struct{})}
				s.serve(s.guard(s.locker(holdfast.WithTTL(time.Minute)), also()), func(_ context.Context, task *asynq.Task) error {
					if end := ends[accountOf(task)]; end != nil {
						<-end
					}
					return nil
				})
				gaveWay := func(first, second int64) {
					t.Helper()
					s.until(fmt.Sprintf("%d and %d notes at the two keys", first, second), func() bool {
						return s.queued().Retry == 1 && rdb.ZCard(ctx, notesOf(1)).Val() == first && rdb.ZCard(ctx, notesOf(2)).Val() == second
					})
					s.mu.Lock()
					defer s.mu.Unlock()
					key := map[int64]string{1: "account:1", 0: "account:2"}[first]
					if e := s.events[len(s.events)-1]; e.Key != key || heldKey(e.Err) != key {
						t.Errorf("it gave way at %q, want %q: %v", e.Key, key, e.Err)
					}
				}
				s.enqueue(transfer(5, 1))
				s.enqueue(transfer(6, 2))
				s.until("the holders", func() bool { return s.ran() == 2 })
				s.enqueue(transfer(1, 2), opts...)
				gaveWay(1, 0)

				quick := s.locker(holdfast.WithTTL(time.Second))
				waits := func() bool {
					state, err := quick.Inspect(ctx, "account:1")
					return err == nil && state.Waiting == 1
				}
				quicker := make(chan func())
				go func() { quicker <- s.hold(quick, 1) }()
				s.until("somebody in line", waits)
				close(ends["5"])
				leave := <-quicker
				s.look(5*time.Millisecond, "the woken task in line", waits)
				leave()
				gaveWay(0, 1)

				s.hold(quick, 1)() // it is free
				s.enqueue(transfer(1, 3))
				s.until("the run of another", func() bool { return s.ran() == 3 })
				gaveWay(0, 1)
				began := time.Now()
				close(ends["6"])
				s.until("the transfer", func() bool { return s.ran() == 4 })
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("it was woken after %v", took)
				}
				s.empty()
				s.check(0, 0)
			})
		})
	}
}

// The other policies, a loss, and a panic, with several locks.
func TestSeveralLocksOfATask(t *testing.T) {
	run := func(s *shop, g *asynqlock.Guard, work asynq.HandlerFunc) error {
		return g.Wrap(work).ProcessTask(g.Config(asynq.Config{}).BaseContext(), transfer(1, 2))
	}
	free := func(s *shop) {
		s.t.Helper()
		for _, account := range []int{1, 2} {
			s.hold(s.locker(), account)()
		}
	}
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		for _, account := range []int{1, 2} {
			leave := s.hold(s.locker(), account)
			if err := run(s, s.guard(s.locker(), also(), asynqlock.WithBusy(asynqlock.Skip())), succeed); err != nil || s.of("skipped") != account {
				t.Errorf("Skip: got %v, %d skipped", err, s.of("skipped"))
			}
			err := run(s, s.guard(s.locker(), also(), asynqlock.WithBusy(asynqlock.Fail())), succeed)
			if heldKey(err) != fmt.Sprint("account:", account) {
				t.Errorf("Fail: got %v", err)
			}
			time.AfterFunc(time.Second, leave)
			if err := run(s, s.guard(s.locker(), also(), asynqlock.WithBusy(asynqlock.Wait(time.Minute))), succeed); err != nil {
				t.Errorf("Wait: got %v", err)
			}
			free(s)

			err = run(s, s.guard(s.locker(), also()), func(ctx context.Context, _ *asynq.Task) error {
				b.Redis.Del(fmt.Sprint("account:", account))
				<-ctx.Done()
				return nil
			})
			if !errors.Is(err, holdfast.ErrLost) || s.of("lost") != account {
				t.Errorf("a loss: got %v, %d told", err, s.of("lost"))
			}
			free(s)
		}
		func() {
			defer func() { _ = recover() }()
			_ = run(s, s.guard(s.locker(), also()), func(context.Context, *asynq.Task) error { panic("boom") })
		}()
		free(s)

		one := func(ctx context.Context, task *asynq.Task) error {
			if n := len(holdfast.Held(ctx)); n != 1 {
				t.Errorf("%d locks for one account", n)
			}
			return nil
		}
		g := s.guard(s.locker(), also())
		if err := g.Wrap(asynq.HandlerFunc(one)).ProcessTask(g.Config(asynq.Config{}).BaseContext(), transfer(1, 1)); err != nil {
			t.Error(err)
		}
	})
}

// A lock that goes while the task waits for the next one is no loss of a run: none has begun. The task takes it again.
func TestLossBeforeTheRunIsNoLoss(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		leave := s.hold(s.locker(), 2)
		s.serve(s.guard(s.locker(), also(), asynqlock.WithFailOpen(), asynqlock.WithBusy(asynqlock.Wait(time.Minute))), succeed)
		s.enqueue(transfer(1, 2))
		time.Sleep(2 * time.Second)
		b.Redis.Del("account:1")
		s.until("the deferral", func() bool { return s.of("deferred") == 1 })
		s.mu.Lock()
		if err := s.events[0].Err; errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("deferred by %v", err)
		}
		s.mu.Unlock()
		leave()
		s.empty()
		s.check(0, 0)
	})
}

// Under an outer Guard that has one of the locks, a task takes the others.
func TestSeveralUnderAnOuterGuard(t *testing.T) {
	for _, outer := range []string{"account", "to"} {
		bubble(t, func(s *shop) {
			l := s.locker()
			done := make(chan int, 1)
			inner := asynqlock.New(l, "account", asynqlock.Field("account"), also())
			s.serve(asynqlock.New(l, "account", asynqlock.Field(outer)), inner.Wrap(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				done <- len(holdfast.Held(ctx))
				return nil
			})).ProcessTask)
			s.enqueue(transfer(1, 2))
			if n := <-done; n != 2 {
				t.Errorf("outer %s: %d locks, want 2", outer, n)
			}
			s.empty()
			s.check(0, 0)
		})
	}
}
