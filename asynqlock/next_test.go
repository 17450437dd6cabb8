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
		if _, err := s.tasks.Enqueue(task); err != nil {
			s.t.Error(err)
		}
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
	s.until("they give way", func() bool { return s.of("deferred") >= hot })
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

// A backlog in the queue keeps no task waiting whose key is idle, whether it has retries left or not, or has come back by
// itself, to the end of the queue.
func TestWokenTaskRunsNext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{"deferred": nil, "without retries": {asynq.MaxRetry(0)}} {
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

// The wake takes the first tasks that can run, in their order, and leaves alone what cannot be found in a bounded part of the
// queue, has run, has failed, or was archived by hand; and it leaves all as it is in a queue that is paused.
func TestWakeLooksAtTheTask(t *testing.T) {
	everywhere(t, func(s *shop) {
		t, ctx, rdb := s.t, context.Background(), s.client()
		const prefix, notes, shares = "asynq:{q}:", "asynqlock:deferred:{q}:account:1", "asynqlock:shares:{q}:account:1"
		of := func(share, id, state string, fields ...any) {
			notes := notes
			if share != "" {
				notes = "asynqlock:share:{q}:" + share + "|account:1"
			}
			rdb.HSet(ctx, prefix+"t:"+id, append([]any{"state", state}, fields...)...)
			rdb.ZAdd(ctx, notes, redis.Z{Score: float64(len(id)), Member: id}) // longer names come later
			if state == "retry" || state == "archived" {
				rdb.ZAdd(ctx, prefix+state, z(id))
			}
		}
		task := func(id, state string, fields ...any) { of("", id, state, fields...) }
		turns := func(names ...string) {
			for i, name := range names {
				rdb.ZAdd(ctx, shares, redis.Z{Score: float64(i), Member: name})
			}
		}
		deferred := []any{"holdfast", "1 0"}
		kept := append([]any{"holdfast:kept", 1}, deferred...)
		for name, c := range map[string]struct {
			setUp  func()
			wake   int
			reply  int
			queued string // by commas
			left   string // notes
			share  string // of the task that has run
			turns  string // of the shares that are left
		}{
			"deferred": {func() { task("a", "retry", deferred...) }, 1, 1, "x,y,z,a", "", "", ""},
			"two of three": {func() {
				task("a", "retry", deferred...)
				task("aa", "retry", deferred...)
				task("aaa", "retry", deferred...)
			}, 2, 2, "x,y,z,aa,a", "aaa", "", ""},
			"two of one":     {func() { task("a", "retry", deferred...) }, 2, 1, "x,y,z,a", "", "", ""},
			"not in the set": {func() { task("a", "retry", deferred...); rdb.Del(ctx, prefix+"retry") }, 1, 0, "x,y,z", "", "", ""},
			"failed":         {func() { task("a", "retry") }, 1, 0, "x,y,z", "", "", ""},
			"active":         {func() { task("a", "active", deferred...) }, 1, -1, "x,y,z", "a", "", ""},
			"the next":       {func() { task("a", "active", deferred...); task("aa", "retry", deferred...) }, 1, 1, "x,y,z,aa", "a", "", ""},
			"archived":       {func() { task("a", "archived", deferred...) }, 1, 0, "x,y,z", "", "", ""},
			"kept":           {func() { task("a", "archived", kept...) }, 1, 1, "x,y,z,a", "", "", ""},
			"kept, gone":     {func() { task("a", "archived", kept...); rdb.Del(ctx, prefix+"archived") }, 1, 0, "x,y,z", "", "", ""},
			"gone":           {func() { task("a", "retry", deferred...); rdb.Del(ctx, prefix+"t:a") }, 1, 0, "x,y,z", "", "", ""},
			"back":           {func() { task("a", "pending", deferred...); rdb.LPush(ctx, prefix+"pending", "w", "a", "v") }, 1, 1, "v,w,x,y,z,a", "", "", ""},
			"too deep":       {func() { task("a", "pending", deferred...); rdb.RPush(ctx, prefix+"pending", "a") }, 1, 0, "x,y,z,a", "", "", ""},
			"paused":         {func() { task("a", "retry", deferred...); rdb.Set(ctx, prefix+"paused", 1, 0) }, 1, 0, "x,y,z", "a", "", ""},
			"its own":        {func() { task("own", "active", deferred...) }, 1, 0, "x,y,z", "", "", ""},
			"many that have gone": {func() {
				for i := range 1500 {
					rdb.ZAdd(ctx, notes, redis.Z{Score: float64(i), Member: fmt.Sprint(i)})
				}
			}, 1, -1, "x,y,z", "500 of them", "", ""},
			"by turns": {wake: 2, reply: 2, queued: "x,y,z,c,bb", left: "a", turns: ",b", setUp: func() {
				task("a", "retry", deferred...)
				of("b", "bb", "retry", deferred...)
				of("b", "bbb", "retry", deferred...)
				of("c", "c", "retry", deferred...)
				turns("b", "c", "")
			}},
			"its own share": {wake: 1, reply: 1, queued: "x,y,z,c", share: "b", turns: "", setUp: func() {
				of("b", "own", "active", deferred...)
				of("c", "c", "retry", deferred...)
				turns("b", "c")
			}},
			"a share that is back": {wake: 1, reply: 1, queued: "x,y,z,cc", turns: "b,c", setUp: func() {
				of("b", "bb", "active", deferred...)
				of("c", "cc", "retry", deferred...)
				of("c", "ccc", "retry", deferred...)
				turns("b", "c")
			}},
			"no share is back": {wake: 1, reply: -1, queued: "x,y,z", turns: "b,c", setUp: func() {
				of("b", "b", "active", deferred...)
				of("c", "c", "active", deferred...)
				turns("b", "c")
			}},
			"a share of nothing": {wake: 1, reply: 1, queued: "x,y,z,c", setUp: func() {
				of("c", "c", "retry", deferred...)
				turns("b", "c")
			}},
			"failed, of a share": {wake: 1, reply: 0, queued: "x,y,z", setUp: func() {
				of("b", "b", "retry")
				turns("b")
			}},
			"only its own": {reply: 0, queued: "x,y,z", share: "b", turns: "c", setUp: func() {
				of("b", "own", "active", deferred...)
				of("c", "c", "retry", deferred...)
				turns("b", "c")
			}},
		} {
			rdb.FlushAll(ctx)
			rdb.RPush(ctx, prefix+"pending", "x", "y", "z")
			c.setUp()
			keys := []string{notes, prefix + "pending", prefix + "retry", prefix + "archived", prefix + "paused", shares}
			n, err := asynqlock.RunScript.Run(ctx, rdb, keys, prefix+"t:", 7, c.wake, 3, "own", time.Now().Unix(), c.share, "asynqlock:share:{q}:", "|account:1").Int()
			left := rdb.ZRange(ctx, notes, 0, -1).Val()
			if len(left) > 10 {
				left = []string{fmt.Sprint(len(left), " of them")}
			}
			queued := strings.Join(rdb.LRange(ctx, prefix+"pending", 0, -1).Val(), ",")
			if got := strings.Join(rdb.ZRange(ctx, shares, 0, -1).Val(), ","); got != c.turns {
				t.Errorf("%s: the turns of %q are left, want %q", name, got, c.turns)
			}
			if err != nil || n != c.reply || queued != c.queued || strings.Join(left, ",") != c.left {
				t.Errorf("%s: got %d, %v, %q in the queue and notes %q, want %d, %q and %q", name, n, err, queued, left, c.reply, c.queued, c.left)
			}
			if h := rdb.HGetAll(ctx, prefix+"t:a").Val(); n > 0 && strings.HasSuffix(c.queued, ",a") && (h["state"] != "pending" || h["pending_since"] != "7" || h["holdfast:woken"] != "1" || h["holdfast:kept"] != "") {
				t.Errorf("%s: got %v", name, h)
			}
		}
	})
}

// What asynq archives is brought back only if it does so for the deferral.
func TestKeepLooksAtTheTask(t *testing.T) {
	everywhere(t, func(s *shop) {
		t, ctx, rdb := s.t, context.Background(), s.client()
		const task, archived, retry = "asynq:{q}:t:a", "asynq:{q}:archived", "asynq:{q}:retry"
		for name, c := range map[string]struct {
			state string // "" if it is gone
			kept  bool
			first int
			reply int
			after string
			stays bool // kept
		}{
			"before asynq knows":        {"active", false, 1, -1, "active", true},
			"said again":                {"active", true, 1, -1, "active", true},
			"not archived yet":          {"active", true, 0, -1, "active", true},
			"archived":                  {"archived", true, 0, 1, "retry", false},
			"archived, the answer lost": {"archived", true, 1, 1, "retry", false},
			"run by another":            {"active", false, 0, 0, "active", false},
			"archived by hand":          {"archived", false, 0, 0, "archived", false},
			"run by hand":               {"pending", true, 0, 0, "pending", true},
			"gone":                      {"", false, 1, 0, "", false},
		} {
			rdb.FlushAll(ctx)
			if c.state != "" {
				rdb.HSet(ctx, task, "state", c.state)
			}
			if c.state == "archived" {
				rdb.ZAdd(ctx, archived, z("a"))
			}
			if c.kept {
				rdb.HSet(ctx, task, "holdfast:kept", 1)
			}
			n, err := asynqlock.KeepScript.Run(ctx, rdb, []string{task, archived, retry}, "a", 7, c.first).Int()
			state, stays := rdb.HGet(ctx, task, "state").Val(), rdb.HExists(ctx, task, "holdfast:kept").Val()
			if err != nil || n != c.reply || state != c.after || stays != c.stays {
				t.Errorf("%s: got %d, %v, state %q, kept %v, want %d, %q, %v", name, n, err, state, stays, c.reply, c.after, c.stays)
			}
			if due := rdb.ZScore(ctx, retry, "a").Val(); (n == 1) != (due == 7) || (c.state == "archived") != (rdb.ZCard(ctx, archived).Val()+rdb.ZCard(ctx, retry).Val() == 1) {
				t.Errorf("%s: due at %v", name, due)
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
	for state, goesOn := range map[string]bool{"%d 0": true, "%d 1": false, "%d 0 x": false, "x 0": false, "": false, "%d": false} {
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
			time.Sleep(100 * time.Millisecond)
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
