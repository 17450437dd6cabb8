package asynqlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
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
