package asynqlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Whatever somebody does by hand to a task that is deferred, with retries left and without, counts, and no release undoes it.
func TestDeferredTasksByHand(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				ends, ids := make(chan struct{}), make(chan string, 10)
				s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
					id, _ := asynq.GetTaskID(ctx)
					if id == "holder" {
						<-ends
					}
					ids <- id
					return nil
				}, asInREADME)
				s.enqueue(pay(42), asynq.TaskID("holder"))
				s.until("the holder", func() bool { return s.ran() == 1 })
				for _, id := range []string{"archived", "deleted", "run"} {
					s.enqueue(pay(42), append(opts, asynq.TaskID(id))...)
				}
				s.until("all deferred", func() bool { return s.queued().Retry == 3 })
				for _, err := range []error{s.inspector.ArchiveTask(queue, "archived"), s.inspector.DeleteTask(queue, "deleted"), s.inspector.RunTask(queue, "run")} {
					if err != nil {
						t.Error(err)
					}
				}
				s.until("the one that is run is back", func() bool { q := s.queued(); return q.Retry == 1 && q.Archived == 1 })
				s.enqueue(pay(42), asynq.TaskID("deleted")) // its ID is free
				s.until("another", func() bool { return s.queued().Retry == 2 })
				close(ends)
				s.empty()
				time.Sleep(5 * time.Second)
				close(ids)
				var ran []string
				for id := range ids {
					ran = append(ran, id)
				}
				slices.Sort(ran)
				if want := []string{"deleted", "holder", "run"}; !slices.Equal(ran, want) {
					t.Errorf("%q ran, want %q", ran, want)
				}
				if info, err := s.inspector.GetTaskInfo(queue, "archived"); err != nil || info.State != asynq.TaskStateArchived {
					t.Errorf("archived by hand: %+v, %v", info, err)
				}
				s.check(0, 1)
			})
		})
	}
}

// If the process ends between asynq's archiving of a deferred task and its return, the task can be seen in the archive, and
// the next task of its key brings it back when it ends. So it does for what asynq itself archives for a dead worker.
func TestKilledBeforeATaskIsBack(t *testing.T) {
	t.Parallel()
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		rdb := b.Client()
		b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
			if len(args) > 8 && args[2] == "3" && strings.HasSuffix(args[4], ":archived") && args[len(args)-1] == "0" {
				return servertest.LoseRequestAndClose
			}
			return servertest.Pass
		})
		ends := make(chan struct{})
		s.serve(s.guard(s.locker(), asynqlock.WithRedis(rdb)), func(ctx context.Context, _ *asynq.Task) error {
			if id, _ := asynq.GetTaskID(ctx); id == "holder" {
				<-ends
			}
			return nil
		})
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("the holder", func() bool { return s.ran() == 1 })
		s.enqueue(pay(42), asynq.TaskID("a"), asynq.MaxRetry(0))
		s.until("the archived task", func() bool { return s.queued().Archived == 1 })
		if info, err := s.inspector.GetTaskInfo(queue, "a"); err != nil || !strings.Contains(info.LastErr, "deferred since") {
			t.Errorf("got %+v, %v", info, err)
		}
		time.Sleep(40 * time.Second) // longer than anybody tries
		close(ends)
		s.until("its run", func() bool { return s.ran() == 2 })
		s.empty()
		s.check(0, 0)
	})
}
