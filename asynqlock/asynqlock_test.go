package asynqlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		work := func(ctx context.Context, _ *asynq.Task) error {
			time.Sleep(300 * time.Millisecond)
			return ctx.Err()
		}
		for range 2 {
			s.serve(s.guard(s.locker()), work)
		}
		for i := range 60 {
			s.enqueue(pay(i % 3))
		}
		s.empty()
		s.check(0, 0)
		if n := s.ran(); n != 60 {
			t.Errorf("%d runs, want 60", n)
		}
		if s.of("deferred") == 0 {
			t.Error("nothing was deferred: the test tests nothing")
		}
	})
}
