package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A loss, a run without the lock and a missed tick are logged, unless there is a Trace, be it an empty one.
func TestWhatIsSaidByDefault(t *testing.T) {
	lost := func(s *shop, l *holdfast.Locker, _ *servertest.Link, trace ...asynqlock.Option) {
		rdb := s.client()
		g := asynqlock.New(l, "account", asynqlock.Field("account"), trace...)
		s.serve(g, func(ctx context.Context, _ *asynq.Task) error {
			if s.ran() == 1 {
				rdb.Del(ctx, holdfast.Key("account", "42"))
				<-ctx.Done()
			}
			return nil
		})
		s.enqueue(pay(42))
		s.empty()
	}
	unlocked := func(s *shop, l *holdfast.Locker, away *servertest.Link, trace ...asynqlock.Option) {
		opts := append(trace, asynqlock.WithFailOpen(), asynqlock.WithRedis(s.client()))
		away.Refuse(errors.New("no route"))
		s.serve(asynqlock.New(l, "account", asynqlock.Field("account"), opts...), succeed)
		s.enqueue(pay(42))
		s.empty()
	}
	for name, c := range map[string]struct {
		happens func(*shop, *holdfast.Locker, *servertest.Link, ...asynqlock.Option)
		says    []string
	}{
		"a loss":        {lost, []string{"level=ERROR", "lost", "key=account:42", "type=pay", "id="}},
		"unlocked":      {unlocked, []string{"level=WARN", "without its lock", "key=account:42", "type=pay"}},
		"a missed tick": {nil, []string{"level=ERROR", "missed", "name=report", "tick="}},
	} {
		for _, traced := range []bool{false, true} {
			logged := logTo(t)
			bubbleWith(t, func(s *shop, b *servertest.Bubble) {
				rdb := b.Client()
				link := b.Link(rdb)
				l, err := holdfast.New(rdb)
				if err != nil {
					t.Fatal(err)
				}
				s.t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_ = l.Shutdown(ctx)
				})
				switch {
				case c.happens != nil && traced:
					c.happens(s, l, link, asynqlock.WithTrace(traceTo(func(event) {})))
					return
				case c.happens != nil:
					c.happens(s, l, link, asynqlock.WithTrace(&asynqlock.Trace{})) // which changes nothing
					return
				}
				opts := []asynqlock.SchedulerOption{asynqlock.WithLateness(time.Second)}
				if traced {
					opts = append(opts, asynqlock.WithTrace(traceTo(func(event) {})))
				}
				sch := asynqlock.NewScheduler(l, opts...)
				register(t, sch, "report", "* * * * *")
				link.Refuse(errors.New("no route"))
				s.start(sch)
				time.Sleep(time.Minute + 2*time.Second)
				sch.Shutdown()
			})
			for _, what := range c.says {
				if strings.Contains(logged.String(), what) == traced {
					t.Errorf("%s, traced %v: the log has %s, want of it %q: %v", name, traced, logged.String(), what, !traced)
				}
			}
		}
	}
}

// A holdfast.LogTrace of the Locker has the line about a loss, in place of the Guard.
func TestLossThatTheLockerLogs(t *testing.T) {
	for _, logs := range []bool{true, false} {
		logged := logTo(t)
		bubbleWith(t, func(s *shop, _ *servertest.Bubble) {
			var opts []holdfast.Option
			if logs {
				opts = append(opts, holdfast.WithTrace(holdfast.LogTrace(nil)))
			}
			rdb := s.client()
			s.serve(asynqlock.New(s.locker(opts...), "account", asynqlock.Field("account")), func(ctx context.Context, _ *asynq.Task) error {
				if s.ran() == 1 {
					rdb.Del(ctx, holdfast.Key("account", "42"))
					<-ctx.Done()
				}
				return ctx.Err()
			})
			s.enqueue(pay(42))
			s.empty()
		})
		want := "asynqlock: the lock was lost"
		if logs {
			want = "holdfast: lost"
		}
		if text := logged.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, want) {
			t.Errorf("want one line, %q, got\n%s", want, text)
		}
	}
}

// A replica that was paused over a tick cannot know that another one enqueued it.
func TestPausedReplicaLogsNoError(t *testing.T) {
	logged := logTo(t)
	bubble(t, func(s *shop) {
		sch := asynqlock.NewScheduler(s.locker())
		s.start(sch)
		defer sch.Shutdown()
		register(t, sch, "report", "0 0 1 1 *")
		tick := time.Now().Truncate(time.Minute)
		time.Sleep(time.Until(tick.Add(61 * time.Second)))
		sch.At("report", tick)
	})
	if text := logged.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN msg=\"asynqlock: a tick came too late to this replica") {
		t.Errorf("got %s", text)
	}
}
