package core_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// What waits for a lane travels together; what was called off by then does not travel at all.
func TestCommandsTravelTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, core.WithTTL(time.Minute))
		warm(t, r)
		free := stuck(t, r)
		b.ResetCommands()
		ctx, cancel := context.WithCancel(background)
		var all sync.WaitGroup
		var locks [10]*core.Lock
		for i := range locks {
			all.Go(func() {
				lock, err := r.TryAcquire(background, "k"+strconv.Itoa(i))
				if err != nil {
					t.Error(err)
				}
				locks[i] = lock
			})
			all.Go(func() {
				_, err := r.TryAcquire(ctx, "gone"+strconv.Itoa(i))
				wantIs(t, err, context.Canceled)
				wantIs(t, err, core.ErrUnavailable)
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands while the lanes are busy", n)
		}
		conns := b.Redis.TotalConnectionCount()
		free()
		all.Wait()
		if n := b.Redis.TotalConnectionCount(); n > conns+2 { // newer go-redis has some of their own for pipelines
			t.Errorf("%d more connections", n-conns)
		}
		for _, lock := range locks {
			release(t, lock)
		}
		// 4 + 10 releases and 10 acquires; the four acquires came before.
		if n := b.Commands().Total(); n != 24 {
			t.Errorf("%d commands, want 24: %v", n, b.Commands())
		}
		shutdown(t, r.Locker)
		for _, key := range b.Redis.Keys() {
			if len(key) < 10 || key[0] != '{' {
				t.Errorf("left behind: %s", key)
			}
		}
	})
}

// A lane that hangs costs those behind it their patience, and no more.
func TestCommandsPassALaneThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		free := stuck(t, r)
		began := time.Now()
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > core.Patience(15*time.Second)+100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		began = time.Now()
		release(t, lock)
		if d := time.Since(began); d > core.Patience(15*time.Second)+100*time.Millisecond {
			t.Errorf("the release took %v", d)
		}
		free()
		shutdown(t, r.Locker)
	})
}

// Lanes that hang do not fail a call that does not wait, while Redis serves.
func TestLanesThatHangFailNobody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		free := stuck(t, r)
		time.Sleep(100 * time.Millisecond)
		lock, err := r.TryAcquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock)
		free()
		shutdown(t, r.Locker)
	})
}

// A command that nobody listens to any more is not sent late.
func TestLanesDropWhatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client(func(o *redis.Options) { o.ReadTimeout = 10 * time.Minute })
		r := &replica{newLocker(t, rdb), rdb, b.Link(rdb)}
		warm(t, r)
		free := stuck(t, r)
		lock, err := r.Acquire(background, "k") // the first one waits for a lane
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock)
		time.Sleep(2 * time.Minute)
		b.ResetCommands()
		free()
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Errorf("taken by a call that has ended")
		}
		t.Log(b.Commands())
		shutdown(t, r.Locker)
	})
}

// A pipeline that a hook of the client stops has failed, and is tried again.
func TestPipelineThatAHookStops(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		h := &breaker{}
		r.rdb.AddHook(h)
		var locks [3]*core.Lock
		for i := range locks {
			locks[i] = acquire(t, r.Locker, "k"+strconv.Itoa(i))
		}
		free := stuck(t, r)
		errs := make(chan error, 3)
		for _, lock := range locks {
			go func() { errs <- lock.Release(background) }()
		}
		synctest.Wait()
		h.open = true
		free()
		synctest.Wait()
		h.open = false
		for range locks {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if h.n == 0 {
			t.Error("the hook was not asked")
		}
		shutdown(t, r.Locker)
	})
}

// A command that comes in the very moment in which a lane stops waiting for one is not lost with it.
func TestCommandMeetsTheEndOfARest(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		for i := range 300 {
			began := time.Now()
			lock, err := r.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 10*time.Millisecond {
				t.Fatalf("acquire %d took %v", i, d)
			}
			release(t, lock)
			if d := time.Since(began); d > 10*time.Millisecond {
				t.Fatalf("release %d took %v", i, d)
			}
			time.Sleep(core.LaneRest)
		}
	})
}

// breaker is a go-redis hook that lets no pipeline through while it is open.
type breaker struct {
	open bool
	n    int
}

func (h *breaker) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.open {
			h.n++
			return errors.New("the breaker is open")
		}
		return next(ctx, cmds)
	}
}

// stuck takes four locks, as many as there are lanes, whose answers wait until free is called.
func stuck(t *testing.T, r *replica) (free func()) {
	t.Helper()
	held := make(chan struct{})
	r.link.OnCommand(func(args []string) servertest.Verdict {
		if kind(args) == "acquire" {
			return servertest.HoldReply(held)
		}
		return servertest.Pass
	})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			lock, err := r.TryAcquire(background, "stuck"+strconv.Itoa(i), core.WithTTL(time.Minute))
			if err == nil {
				err = lock.Release(background)
			}
			if err != nil && !errors.Is(err, core.ErrUnavailable) { // it may have taken too long
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	r.link.OnCommand(nil)
	return func() {
		close(held)
		all.Wait()
	}
}
