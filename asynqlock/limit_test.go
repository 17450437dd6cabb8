package asynqlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// Three servers run fifty tasks of one account, two at a time and no more; none spends a retry, and all run.
func TestLimitOfAnAccount(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		var live, most atomic.Int64
		for range 3 {
			s.serve(s.guard(s.locker(), asynqlock.WithLimit(2)), func(context.Context, *asynq.Task) error {
				defer live.Add(-1)
				for n := live.Add(1); ; {
					if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
						break
					}
				}
				time.Sleep(20 * time.Millisecond)
				return nil
			})
		}
		for range 50 {
			s.enqueue(pay(42))
		}
		s.empty()
		if most.Load() != 2 || s.ran() != 50 {
			t.Errorf("%d runs, up to %d at a time", s.ran(), most.Load())
		}
		if q := s.queued(); q.FailedTotal != 0 || q.Archived != 0 {
			t.Errorf("%+v", q)
		}
	})
}

// Three servers run tasks of many accounts with two gateways: one task of an account at a time, and four of a gateway, which all
// run. A task that gives way at a full gateway is woken there, and no account is held for it meanwhile.
func TestLimitOfTheOtherLock(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		var mu sync.Mutex
		live, most := map[string]int{}, 0
		also := asynqlock.WithAlso("gateway", asynqlock.Field("gateway"), holdfast.WithLimit(4))
		for range 3 {
			s.serve(s.guard(s.locker(), also), func(ctx context.Context, _ *asynq.Task) error {
				for _, by := range []int{1, -1} {
					mu.Lock()
					for _, lock := range holdfast.Held(ctx) {
						want := 1
						if strings.HasPrefix(lock.Key(), "gateway:") {
							want, most = 4, max(most, live[lock.Key()]+by)
						}
						if live[lock.Key()] += by; lock.Limit() != want || live[lock.Key()] > want {
							t.Errorf("%d in %s with a limit of %d, want %d", live[lock.Key()], lock.Key(), lock.Limit(), want)
						}
					}
					mu.Unlock()
					if by == 1 {
						time.Sleep(20 * time.Millisecond)
					}
				}
				return nil
			})
		}
		for i := range 60 {
			s.enqueue(asynq.NewTask("pay", fmt.Appendf(nil, `{"account": %d, "gateway": %d}`, i%20, i%2)))
		}
		s.empty()
		if most < 2 || s.ran() != 60 { // on a busy machine not always 4
			t.Errorf("%d runs, up to %d at a gateway", s.ran(), most)
		}
		if q := s.queued(); q.FailedTotal != 0 || q.Archived != 0 {
			t.Errorf("%+v", q)
		}
	})
}
