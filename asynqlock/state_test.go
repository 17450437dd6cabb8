package asynqlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// A deferral does not hide what the handler failed with before, however often it is repeated.
func TestDeferralKeepsTheHandlersError(t *testing.T) {
	for name, c := range map[string]struct {
		opts []asynq.Option
		kind string
	}{
		"deferred":        {nil, "deferred"},
		"without retries": {[]asynq.Option{asynq.MaxRetry(1)}, "deferred"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				other, free := s.locker(), make(chan func(), 1)
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second))), func(context.Context, *asynq.Task) error {
					if s.ran() > 1 {
						return nil
					}
					go func() { free <- s.hold(other, 42) }()
					return errHandler
				})
				s.enqueue(pay(42), c.opts...)
				s.until("deferrals", func() bool { return s.of(c.kind) >= 3 })
				s.until("the task", func() bool { return s.queued().Retry == 1 })
				tasks, err := s.inspector.ListRetryTasks(queue)
				if err != nil || len(tasks) != 1 {
					t.Fatalf("got %v, %v", tasks, err)
				}
				if got := tasks[0].LastErr; !strings.Contains(got, "deferred since") || strings.Count(got, errHandler.Error()) != 1 {
					t.Errorf("the last error is %q, want the deferral and %q", got, errHandler)
				}
				(<-free)()
				s.empty()
				s.check(1, 0)
			})
		})
	}
}

// What a handler says is no state of the Guard: an error that reads like a deferral, old as that may be, neither ends the
// deferral nor has the task run before its delay for a failure is over.
func TestHandlersErrorIsNoDeferral(t *testing.T) {
	quoted := errors.New("asynqlock: deferred since 1999-01-01T00:00:00Z, now by 1s: holdfast-since 1999-01-01T00:00:00Z")
	for name, failure := range map[string]bool{"a failure": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				other, free := s.locker(), make(chan func(), 1)
				var mu sync.Mutex
				var began []time.Time
				runs := func() []time.Time {
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(began)
				}
				s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDeferral(time.Hour))), func(ctx context.Context, _ *asynq.Task) error {
					if id, _ := asynq.GetTaskID(ctx); id != "a" {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					if began = append(began, time.Now()); len(began) > 1 {
						return nil
					}
					return quoted
				}, func(c *asynq.Config) {
					c.IsFailure = func(error) bool { return failure }
					c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Minute }
				})
				// It is deferred first, so that there is a note of it, and a state.
				release := s.hold(other, 42)
				s.enqueue(pay(42), asynq.TaskID("a"))
				s.until("a deferral", func() bool { return s.of("deferred") == 1 })
				release()
				s.until("the failure", func() bool { return len(runs()) == 1 && s.queued().Active == 0 })
				s.enqueue(pay(42), asynq.TaskID("b")) // whose end wakes what is deferred
				time.Sleep(50 * time.Second)
				if all := runs(); len(all) != 1 {
					t.Errorf("it ran %v after its failure, want a minute", all[1].Sub(all[0]))
				}
				go func() { free <- s.hold(other, 42) }()
				s.until("another deferral", func() bool { return s.of("deferred") > 1 })
				s.mu.Lock()
				last := s.events[len(s.events)-1]
				s.mu.Unlock()
				if time.Since(last.Since) > 30*time.Second {
					t.Errorf("deferred since %v, want since just now, anew after the handler has run: %v", last.Since, time.Now())
				}
				(<-free)()
				s.empty()
				if failures := map[bool]int{true: 1}[failure]; s.queued().FailedTotal != failures || len(runs()) != 2 {
					t.Errorf("%d failures, %d runs", s.queued().FailedTotal, len(runs()))
				}
			})
		})
	}
}

// A task without retries that is deferred again and again stays in the same state, does not grow, keeps what asynq has
// written into it, and leaves nothing behind.
func TestDeferredTaskStaysTheSame(t *testing.T) {
	bubble(t, func(s *shop) {
		free := s.hold(s.locker(), 42)
		rdb, ctx := s.client(), context.Background()
		s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second))), succeed)
		task := asynq.NewTaskWithHeaders("pay", []byte(`{"account": 42, "text": "\u00e9`+strings.Repeat("x", 300)+`"}`), map[string]string{"a": "1", "b": strings.Repeat("y", 200)})
		deadline := time.Now().Add(time.Hour).Truncate(time.Second)
		first := s.enqueue(task, asynq.MaxRetry(0), asynq.Retention(time.Hour), asynq.Timeout(time.Minute), asynq.Deadline(deadline), asynq.Unique(time.Hour))
		sizes, fields := map[int]bool{}, 0
		for n := range 30 {
			s.until("it is deferred", func() bool { return s.of("deferred") > n })
			s.until("it is put back", func() bool { q := s.queued(); return q.Size == 1 && q.Retry == 1 })
			got, err := s.inspector.GetTaskInfo(queue, first.ID)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Payload) != string(task.Payload()) || got.Headers["a"] != "1" || len(got.Headers) != 2 || got.Timeout != time.Minute ||
				got.Retention != time.Hour || !got.Deadline.Equal(deadline) || got.Retried != 0 || got.MaxRetry != 0 || !strings.Contains(got.LastErr, "deferred since") {
				t.Fatalf("got %+v", got)
			}
			key := "asynq:{" + queue + "}:t:" + got.ID
			sizes[len(strings.ReplaceAll(rdb.HGet(ctx, key, "msg").Val(), got.LastErr, ""))/10] = true
			fields = max(fields, len(rdb.HKeys(ctx, key).Val()))
		}
		if len(sizes) > 2 || fields > 6 {
			t.Errorf("its sizes are %v0 bytes, and it has %d fields", sizes, fields)
		}
		free()
		s.empty()
		if s.check(0, 0); s.ran() != 1 || s.queued().Completed != 1 {
			t.Errorf("%d runs, %d completed, want one each", s.ran(), s.queued().Completed)
		}
	})
}

// A Guard around the handlers of all types meets one without its field: the hook, or by default the log, says which, and what
// it lacks.
func TestUnnamedTaskIsNotArchivedSilently(t *testing.T) {
	for _, traced := range []bool{true, false} {
		logged := logTo(t)
		bubble(t, func(s *shop) {
			g := s.guard(s.locker())
			if !traced {
				g = asynqlock.New(s.locker(), "account", asynqlock.Field("account"))
			}
			s.serve(g, succeed) // mux.Use
			s.enqueue(asynq.NewTask("heartbeat", nil))
			s.enqueue(asynq.NewTask("pay", []byte(`{"id": 1}`)))
			s.until("both", func() bool { return s.queued().Archived == 2 })
			s.mu.Lock()
			defer s.mu.Unlock()
			for typ, lacks := range map[string]string{"heartbeat": `task "heartbeat" has no payload`, "pay": `no field "account"`} {
				told := false
				for _, e := range s.events {
					told = told || e.kind == "unnamed" && e.Task.Type() == typ && errors.Is(e.Err, holdfast.ErrInvalid) && strings.Contains(e.Err.Error(), lacks)
				}
				text := strings.ReplaceAll(logged.String(), `\"`, `"`)
				if said := strings.Contains(text, "type="+typ) && strings.Contains(text, lacks); told != traced || said == traced {
					t.Errorf("traced %v: the hook heard %v, the log has %s", traced, s.events, text)
				}
			}
		})
	}
}
