package asynqlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// starts records when each task began, by its ID, and when their key was free.
type starts struct {
	mu   sync.Mutex
	at   map[string]time.Time
	free time.Time
}

func (s *starts) note(ctx context.Context) string {
	id, _ := asynq.GetTaskID(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]time.Time{}
	}
	s.at[id] = time.Now()
	return id
}

func (s *starts) of(id string) time.Time { s.mu.Lock(); defer s.mu.Unlock(); return s.at[id] }

// await waits until one of the tasks has begun, but not for ever, and returns when.
func (s *starts) await(ids ...string) time.Time {
	for end := time.Now().Add(30 * time.Minute); ; time.Sleep(time.Second) {
		for _, id := range ids {
			if at := s.of(id); !at.IsZero() || time.Now().After(end) {
				return at
			}
		}
	}
}

// frees notes that the key is free.
func (s *starts) frees() { s.mu.Lock(); defer s.mu.Unlock(); s.free = time.Now() }

// begins fails the test unless one of the tasks begins at most d after the key was free.
func (s *starts) begins(t *testing.T, d time.Duration, ids ...string) {
	t.Helper()
	at := s.await(ids...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.IsZero() || s.free.IsZero() || at.Sub(s.free) > d {
		t.Errorf("%v began at %v, want it within %v after %v", ids, at, d, s.free)
	}
}

// The turn does not go to a task whose deadline has passed.
func TestDeadlineThatHasPassedTakesNoTurn(t *testing.T) {
	bubble(t, func(s *shop) {
		var st starts
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			if st.note(ctx) == "holder" {
				time.Sleep(20 * time.Second)
				st.frees()
			}
			return nil
		})
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("holder", func() bool { return s.ran() == 1 })
		s.enqueue(pay(42), asynq.TaskID("a"), asynq.Deadline(time.Now().Add(15*time.Second)))
		s.until("a", func() bool { return s.of("deferred") == 1 })
		s.enqueue(pay(42), asynq.TaskID("b"))
		st.begins(t, 5*time.Second, "b")
	})
}

// A task ends, and Redis does not hear that it would wake the next one.
func TestLostWake(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		var st starts
		lose := func(verdict servertest.Verdict) {
			for _, l := range b.Links() {
				l.OnCommand(func(args []string) servertest.Verdict {
					if strings.EqualFold(args[0], "smembers") {
						return verdict
					}
					return servertest.Pass
				})
			}
		}
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			switch st.note(ctx) {
			case "holder":
				time.Sleep(6 * time.Minute)
			case "b":
				time.Sleep(time.Minute)
				lose(servertest.LoseRequest)
				time.AfterFunc(10*time.Second, func() { lose(servertest.Pass) })
				st.frees()
			}
			return nil
		})
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("holder", func() bool { return s.ran() == 1 })
		s.enqueue(pay(42), asynq.TaskID("b"))
		s.until("b", func() bool { return s.of("deferred") == 1 })
		s.enqueue(pay(42), asynq.TaskID("c"))
		s.enqueue(pay(42), asynq.TaskID("d"))
		st.await("b")
		time.Sleep(70 * time.Second)
		st.begins(t, 35*time.Second, "c", "d")
	})
}

func TestTurnOfAPausedQueueComesAgain(t *testing.T) {
	bubble(t, func(s *shop) {
		var st starts
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			switch st.note(ctx) {
			case "holder":
				time.Sleep(6 * time.Minute)
			case "b":
				time.Sleep(time.Minute)
			}
			return nil
		})
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("holder", func() bool { return s.ran() == 1 })
		s.enqueue(pay(42), asynq.TaskID("b"))
		s.until("b", func() bool { return s.of("deferred") == 1 })
		s.enqueue(pay(42), asynq.TaskID("c"))
		st.await("b")
		if err := s.inspector.PauseQueue(queue); err != nil {
			t.Fatal(err)
		}
		time.Sleep(65 * time.Second) // b has ended
		if err := s.inspector.UnpauseQueue(queue); err != nil {
			t.Fatal(err)
		}
		st.frees()
		st.begins(t, 25*time.Second, "c")
	})
}

// The task whose turn it is is archived by hand while it is pending.
func TestTurnArchivedByHand(t *testing.T) {
	bubble(t, func(s *shop) {
		var st starts
		release := make(chan struct{})
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			if st.note(ctx) == "holder" {
				<-release
			}
			return nil
		}, func(c *asynq.Config) { c.TaskCheckInterval = 10 * time.Second })
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("holder", func() bool { return s.ran() == 1 })
		s.enqueue(pay(42), asynq.TaskID("b"))
		s.until("b", func() bool { return s.of("deferred") == 1 })
		s.enqueue(pay(42), asynq.TaskID("c"))
		s.until("c", func() bool { return s.of("deferred") >= 2 })
		time.Sleep(6*time.Minute + 5*time.Second) // a task that is woken is pending for about 5 s
		close(release)
		s.until("b's turn", func() bool {
			info, err := s.inspector.GetTaskInfo(queue, "b")
			return err == nil && info.State == asynq.TaskStatePending && s.inspector.ArchiveTask(queue, "b") == nil
		})
		st.frees()
		st.begins(t, 40*time.Second, "c")
	})
}

// After somebody held the key alone, three tasks run at a time.
func TestLimitIsFilled(t *testing.T) {
	bubble(t, func(s *shop) {
		var mu sync.Mutex
		live, most := 0, 0
		l := s.locker()
		free := s.hold(l, 42) // alone
		s.serve(s.guard(s.locker(), asynqlock.WithLimit(3)), func(ctx context.Context, _ *asynq.Task) error {
			mu.Lock()
			live++
			most = max(most, live)
			mu.Unlock()
			time.Sleep(5 * time.Second)
			mu.Lock()
			live--
			mu.Unlock()
			return nil
		})
		for range 30 {
			s.enqueue(pay(42))
		}
		time.Sleep(5 * time.Second)
		free()
		began := time.Now()
		time.Sleep(40 * time.Second)
		mu.Lock()
		m := most
		mu.Unlock()
		t.Logf("%d runs in %v, at most %d at a time", s.ran(), time.Since(began), m)
		if m < 3 || s.ran() < 15 {
			t.Errorf("%d runs in 40 s, at most %d at a time, want 3 at a time", s.ran(), m)
		}
		time.Sleep(5 * time.Minute)
	})
}
