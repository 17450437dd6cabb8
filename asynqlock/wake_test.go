package asynqlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// notesOf is the key of those that gave way to the lock of an account.
func notesOf(account int) string {
	return "asynqlock:deferred:{" + queue + "}:" + holdfast.Key("account", fmt.Sprint(account))
}

// A release wakes who gave way, and no task of which there is a note though it is no longer deferred.
func TestReleaseWakesOnlyTheDeferred(t *testing.T) {
	bubble(t, func(s *shop) {
		rdb := s.client()
		fail := map[string]bool{"failed": true, "out of retries": true}
		hold := make(chan struct{})
		s.serve(s.guard(s.locker()), func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if id == "holder" {
				<-hold
			}
			if fail[id] {
				return errHandler
			}
			return nil
		}, func(c *asynq.Config) {
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
		})
		stale := map[string]asynq.TaskState{
			"failed": asynq.TaskStateRetry, "out of retries": asynq.TaskStateArchived, "done": asynq.TaskStateCompleted,
			"later": asynq.TaskStateScheduled, "gone": 0,
		}
		s.enqueue(pay(42), asynq.TaskID("later"), asynq.ProcessIn(time.Hour))
		for id, o := range map[string]asynq.Option{"failed": asynq.MaxRetry(1), "out of retries": asynq.MaxRetry(0), "done": asynq.Retention(time.Hour)} {
			s.enqueue(pay(42), asynq.TaskID(id), o)
			time.Sleep(time.Second)
		}
		s.enqueue(pay(42), asynq.TaskID("holder"))
		s.until("the holder", func() bool { return s.ran() == 4 })
		s.enqueue(pay(42), asynq.TaskID("by hand"))
		s.enqueue(pay(42), asynq.TaskID("deferred"))
		s.until("two deferrals", func() bool { return s.of("deferred") == 2 })
		time.Sleep(100 * time.Millisecond)
		if err := s.inspector.ArchiveTask(queue, "by hand"); err != nil {
			t.Fatal(err)
		}
		stale["by hand"] = asynq.TaskStateArchived
		for id := range stale {
			if err := rdb.ZAdd(context.Background(), notesOf(42), redis.Z{Member: id}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		close(hold)
		time.Sleep(time.Second)
		if n := s.ran(); n != 5 {
			t.Errorf("%d runs, want 5: what was deferred is awake by now, and nothing else", n)
		}
		for id, want := range stale {
			if info, err := s.inspector.GetTaskInfo(queue, id); want != 0 && (err != nil || info.State != want) {
				t.Errorf("%q is %v, %v, want %v", id, info, err, want)
			}
		}
	})
}

// What was deferred first is woken first.
func TestFirstDeferredIsWokenFirst(t *testing.T) {
	bubble(t, func(s *shop) {
		order, hold := make(chan string, 5), make(chan struct{})
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if id == "holder" {
				<-hold
			}
			time.Sleep(500 * time.Millisecond)
			order <- id
			return nil
		})
		s.enqueue(pay(42), asynq.TaskID("holder"))
		time.Sleep(time.Second)
		for _, id := range []string{"c", "b", "d", "a"} {
			s.enqueue(pay(42), asynq.TaskID(id))
			time.Sleep(500 * time.Millisecond) // none comes back by itself before all is over
		}
		close(hold)
		s.empty()
		close(order)
		var got []string
		for id := range order {
			got = append(got, id)
		}
		if want := []string{"holder", "c", "b", "d", "a"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A task that comes back by itself has no note any more when it ends, which would be looked at for nothing.
func TestOwnNoteIsNotWaitedFor(t *testing.T) {
	bubble(t, func(s *shop) {
		free := s.hold(s.locker(holdfast.WithTTL(time.Second)), 42)
		var ended time.Time
		s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
			ended = time.Now()
			return nil
		})
		s.enqueue(pay(42), asynq.Retention(time.Hour))
		s.until("the deferral", func() bool { return s.of("deferred") == 1 })
		free()
		s.until("the end", func() bool { return s.queued().Completed == 1 })
		if took := time.Since(ended); took > 100*time.Millisecond {
			t.Errorf("the worker was not free before %v after the handler", took)
		}
	})
}

// However often tasks are deferred, there is one note of each, and in the end there is nothing that stays.
func TestNothingAccumulates(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		ctx, rdb, n := context.Background(), s.client(), 20
		free := s.hold(s.locker(), 42)
		s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second))), succeed)
		for range n {
			s.enqueue(pay(42))
		}
		s.until("many deferrals", func() bool { return s.of("deferred") > 10*n })
		if got := rdb.ZCard(ctx, notesOf(42)).Val(); got == 0 || got > int64(n) {
			t.Errorf("%d notes of %d tasks", got, n)
		}
		if ttl := rdb.PTTL(ctx, notesOf(42)).Val(); ttl <= 0 || ttl > time.Minute+time.Second {
			t.Errorf("the notes expire after %v", ttl)
		}
		free()
		s.empty()
		s.check(0, 0)
		keys, err := rdb.Keys(ctx, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if ttl := rdb.PTTL(ctx, key).Val(); !strings.HasPrefix(key, "asynq:") && ttl <= 0 {
				t.Errorf("%q never expires", key)
			}
		}
	})
}

// Whatever kind the Locker is of, its release wakes.
func TestReleaseOfAnyLockerWakes(t *testing.T) {
	t.Parallel()
	for name, locker := range map[string]func(s *shop) (*holdfast.Locker, error){
		"with a prefix": func(s *shop) (*holdfast.Locker, error) {
			return holdfast.New(s.client(), holdfast.WithPrefix("app:{x}:"))
		},
		"on another Redis": func(s *shop) (*holdfast.Locker, error) { return holdfast.New(servertest.NewBubble(s.t).Client()) },
		"on several": func(s *shop) (*holdfast.Locker, error) {
			var nodes []*redis.Client
			for range 3 {
				b := servertest.NewBubble(s.t)
				b.Uptime(time.Hour)
				nodes = append(nodes, b.Client())
			}
			return redlock.New(nodes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				l, err := locker(s)
				if err != nil {
					t.Fatal(err)
				}
				s.t.Cleanup(func() {
					if err := l.Shutdown(context.Background()); err != nil {
						t.Error(err)
					}
				})
				s.serve(s.guard(l, asynqlock.WithRedis(s.client())), func(context.Context, *asynq.Task) error {
					time.Sleep(3 * time.Second)
					return nil
				})
				began := time.Now()
				for i := range 4 {
					s.enqueue(pay(42), asynq.MaxRetry(i%2))
				}
				s.until("all runs", func() bool { return s.ran() == 4 })
				if took := time.Since(began); took > 11*time.Second {
					t.Errorf("the fourth began after %v, want the time of three", took)
				}
				s.empty()
				s.check(0, 0)
			})
		})
	}
}
