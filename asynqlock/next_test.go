package asynqlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func z(member string) redis.Z { return redis.Z{Member: member} }

// drain has 5 tasks of one key, of 20 ms each, give way to one before them, and then a standing backlog of 100 enqueued, for two
// workers. It returns how long they take when that one ends, busy later.
func drain(s *shop, busy time.Duration, opts ...asynq.Option) time.Duration {
	const hot, backlog = 5, 100
	var mu sync.Mutex
	cold, ran := 0, 0
	release, done := make(chan struct{}), make(chan struct{})
	enqueueCold := func() {
		mu.Lock()
		cold++
		task := pay(1000 + cold)
		mu.Unlock()
		s.enqueue(task)
	}
	s.serve(s.guard(s.locker(), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second))), func(ctx context.Context, task *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "holder" {
			<-release
			return nil
		}
		time.Sleep(20 * time.Millisecond)
		if accountOf(task) != "1" {
			select {
			case <-done:
			default:
				enqueueCold() // it stands
			}
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if ran++; ran == hot {
			close(done)
		}
		return nil
	}, func(c *asynq.Config) { c.Concurrency = 2 })
	s.enqueue(pay(1), asynq.TaskID("holder"))
	s.until("the holder", func() bool { return s.ran() == 1 })
	for range hot {
		s.enqueue(pay(1), opts...)
	}
	s.until("they give way", func() bool { return s.of("deferred")+s.of("handed on") >= hot })
	for range backlog {
		enqueueCold()
	}
	time.Sleep(busy)
	began := time.Now()
	close(release)
	<-done
	took := time.Since(began)
	s.empty()
	s.check(0, 0)
	return took
}

// A backlog in the queue keeps no task waiting whose key is idle, whether it was deferred or handed on, or has come back by
// itself, to the end of the queue.
func TestWokenTaskRunsNext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "handed on": {asynq.MaxRetry(0)}} {
		for _, busy := range []time.Duration{100 * time.Millisecond, 2500 * time.Millisecond} { // so that they come back
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(s *shop) {
					if took := drain(s, busy, opts...); took > 500*time.Millisecond {
						t.Errorf("busy for %v: the last one ended %v after the key was free", busy, took)
					}
				})
			})
		}
	}
}

// At the left end of the queue, where asynq puts what comes, a woken task waits for the backlog: this is what the test above
// looks for.
func TestWokenTaskAtTheEndOfTheQueue(t *testing.T) {
	defer asynqlock.WakeAtTheEnd()()
	bubble(t, func(s *shop) {
		if took := drain(s, 100*time.Millisecond); took < time.Second {
			t.Errorf("the last one ended %v after the key was free: the trap is gone", took)
		}
	})
}

// However deep the queue is, what is looked through for a task is bounded; and a task that cannot be found there, or has gone, is
// left alone.
func TestWakeLooksAtTheTask(t *testing.T) {
	bubble(t, func(s *shop) {
		ctx, rdb := context.Background(), s.client()
		queued := func() []string { return rdb.LRange(ctx, "asynq:{q}:pending", 0, -1).Val() }
		set := func(state string, fields ...any) {
			rdb.Del(ctx, "asynq:{q}:t:a", "asynq:{q}:pending", "asynq:{q}:retry")
			rdb.HSet(ctx, "asynq:{q}:t:a", append([]any{"state", state}, fields...)...)
			rdb.RPush(ctx, "asynq:{q}:pending", "x", "y", "z")
		}
		for _, c := range []struct {
			name   string
			setUp  func()
			reply  int
			queued string
		}{
			{"deferred", func() { set("retry", "holdfast", "1 0 "); rdb.ZAdd(ctx, "asynq:{q}:retry", z("a")) }, 1, "xyza"},
			{"not in the set", func() { set("retry", "holdfast", "1 0 ") }, 0, "xyz"},
			{"failed", func() { set("retry"); rdb.ZAdd(ctx, "asynq:{q}:retry", z("a")) }, 0, "xyz"},
			{"active", func() { set("active", "holdfast", "1 0 ") }, 2, "xyz"},
			{"archived", func() { set("archived", "holdfast", "1 0 ") }, 0, "xyz"},
			{"gone", func() { set("retry"); rdb.Del(ctx, "asynq:{q}:t:a") }, 0, "xyz"},
			{"back", func() { set("pending", "holdfast", "1 0 "); rdb.LPush(ctx, "asynq:{q}:pending", "w", "a", "v") }, 1, "vwxyza"},
			{"too deep", func() { set("pending", "holdfast", "1 0 "); rdb.RPush(ctx, "asynq:{q}:pending", "a") }, 0, "xyza"},
		} {
			c.setUp()
			n, err := asynqlock.RunScript.Run(ctx, rdb, []string{"asynq:{q}:t:a", "asynq:{q}:pending", "asynq:{q}:retry"}, "a", 7, 3).Int()
			got := ""
			for _, id := range queued() {
				got += id
			}
			if err != nil || n != c.reply || got != c.queued {
				t.Errorf("%s: got %d, %v and %q, want %d and %q", c.name, n, err, got, c.reply, c.queued)
			}
			if h := rdb.HGetAll(ctx, "asynq:{q}:t:a").Val(); n == 1 && (h["state"] != "pending" || h["pending_since"] != "7") {
				t.Errorf("%s: got %v", c.name, h)
			}
		}
	})
}

// A hand-on whose answer was lost is said again, when what it has put may have run already, and the task may have gone.
func TestHandOnIsSaidAgain(t *testing.T) {
	bubble(t, func(s *shop) {
		ctx, rdb := context.Background(), s.client()
		const task, successor, retry, unique = "asynq:{q}:t:a", "asynq:{q}:t:a~b", "asynq:{q}:retry", "asynq:{q}:unique:u"
		say := func(lock string) int {
			n, err := asynqlock.HandOnScript.Run(ctx, rdb, []string{task, successor, retry, lock}, "a", "a~b", "message", 7, "1 0 ").Int()
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := say(task); n != 0 || rdb.Exists(ctx, successor).Val() != 0 {
			t.Errorf("a task that has gone: got %d", n)
		}
		for _, owner := range []string{"a", "another"} { // the lock has expired in the meantime, and somebody else has it
			rdb.Del(ctx, task)
			rdb.HSet(ctx, task, "msg", "message", "state", "active")
			rdb.Set(ctx, unique, owner, time.Hour)
			if n := say(unique); n != 1 || rdb.ZScore(ctx, retry, "a~b").Val() != 7 || rdb.HGet(ctx, successor, "state").Val() != "retry" {
				t.Errorf("got %d", n)
			}
			want := map[string]string{"a": "a~b", "another": "another"}[owner]
			if got, ttl := rdb.Get(ctx, unique).Val(), rdb.TTL(ctx, unique).Val(); got != want || ttl != time.Hour {
				t.Errorf("locked by %q for %v, want %q and an hour", got, ttl, want)
			}
			rdb.Del(ctx, successor, retry) // it has run
			if n := say(unique); n != 1 || rdb.Exists(ctx, successor, retry).Val() != 0 {
				t.Errorf("said again: got %d, and the successor is there again", n)
			}
		}
	})
}

// A timeout is counted by asynq while the handler is still at work: the end of that does not have the task run before its
// retry is due, though it was deferred before.
func TestTimeoutEndsADeferral(t *testing.T) {
	bubble(t, func(s *shop) {
		free := s.hold(s.locker(holdfast.WithTTL(time.Second)), 42)
		var mu sync.Mutex
		began := map[string]time.Time{}
		of := func(id string) time.Time {
			mu.Lock()
			defer mu.Unlock()
			return began[id]
		}
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			mu.Lock()
			began[id] = time.Now()
			mu.Unlock()
			if retried, _ := asynq.GetRetryCount(ctx); id == "deaf" && retried == 0 {
				time.Sleep(time.Minute)
			}
			return nil
		}, func(c *asynq.Config) {
			c.TaskCheckInterval, c.DelayedTaskCheckInterval = time.Second, time.Second
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 5 * time.Minute }
		})
		s.enqueue(pay(42), asynq.TaskID("deaf"), asynq.Timeout(30*time.Second))
		s.until("a deferral", func() bool { return s.of("deferred") > 0 })
		free() // of which no task hears, so that its note stays
		s.until("the run", func() bool { return s.ran() == 1 })
		first := of("deaf")
		s.enqueue(pay(42), asynq.TaskID("next")) // so that there are notes when that one ends
		time.Sleep(10 * time.Minute)
		next, again := of("next").Sub(first), of("deaf").Sub(first)
		if s.ran() != 3 || next < time.Minute || next > time.Minute+5*time.Second || again < 5*time.Minute {
			t.Errorf("%d runs, the next task's after %v, the retry after %v, want 3, a minute and 5.5", s.ran(), next, again)
		}
		s.empty()
		s.check(1, 0)
	})
}

// The state of a deferral ends with a retry that asynq has counted since, as behind a worker that was killed.
func TestStateOfADeferral(t *testing.T) {
	for state, goesOn := range map[string]bool{"%d 0 ": true, "%d 0 some text": true, "%d 1 ": false, "x 0": false, "": false, "%d": false} {
		bubble(t, func(s *shop) {
			defer s.hold(s.locker(), 42)()
			since := time.Now().Add(-time.Hour)
			s.enqueue(pay(42), asynq.TaskID("a"))
			if strings.Contains(state, "%d") {
				state = fmt.Sprintf(state, since.UnixMilli())
			}
			s.client().HSet(context.Background(), "asynq:{default}:t:a", "holdfast", state)
			s.serve(s.guard(s.locker()), succeed)
			s.until("a deferral", func() bool { return s.of("deferred") > 0 })
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := s.events[0].Since.Equal(since); got != goesOn {
				t.Errorf("%q: deferred since %v, want it to go on: %v", state, s.events[0].Since, goesOn)
			}
		})
	}
}

// A woken task to which another holder was quicker waits for that a little, and then gives way again.
func TestWokenTaskWaitsALittle(t *testing.T) {
	for busy, deferrals := range map[time.Duration]int{50 * time.Millisecond: 1, 5 * time.Second: 2} {
		bubble(t, func(s *shop) {
			release := make(chan struct{})
			s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
				if id, _ := asynq.GetTaskID(ctx); id == "holder" {
					<-release
				}
				return nil
			}, func(c *asynq.Config) { c.TaskCheckInterval = 10 * time.Millisecond })
			s.enqueue(pay(42), asynq.TaskID("holder"))
			s.until("the holder", func() bool { return s.ran() == 1 })
			s.enqueue(pay(42))
			s.until("the deferral", func() bool { return s.of("deferred") == 1 })
			other, quicker := s.locker(), make(chan struct{})
			go func() {
				defer close(quicker)
				free := s.hold(other, 42) // waits in line, so that it gets the lock at the release
				time.Sleep(busy)
				free()
			}()
			time.Sleep(time.Second)
			close(release)
			<-quicker
			freed := time.Now()
			s.until("the run", func() bool { return s.ran() == 2 })
			// The delay of another deferral goes by what the lease has left, which is short behind a grant: there may be a third.
			took, n := time.Since(freed), s.of("deferred")
			if (deferrals == 1) != (took < time.Second) || n < deferrals || deferrals == 1 && n > 1 {
				t.Errorf("busy for %v: deferred %d times, want %d; it ran %v later", busy, n, deferrals, took)
			}
			s.empty()
			s.check(0, 0)
		})
	}
}
