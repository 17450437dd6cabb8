package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
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
		r := newReplica(t, b, holdfast.WithTTL(time.Minute))
		warm(t, r)
		for i := range 10 {
			release(t, acquire(t, r.Locker, "k"+strconv.Itoa(i)))
		}
		time.Sleep(time.Millisecond) // or the next tokens have to be drawn
		free := stuck(t, r)
		b.ResetCommands()
		ctx, cancel := context.WithCancel(background)
		var all sync.WaitGroup
		var locks [10]*holdfast.Lock
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
				wantIs(t, err, holdfast.ErrUnavailable)
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
		// As many releases as lanes and 10 more; and the 10 acquires in one or two bundles, whose script is new to the server.
		alone := int64(holdfast.MinLanes + 10)
		if n := b.Commands().Total(); n < alone+2 || n > alone+4 {
			t.Errorf("%d commands, want %d to %d: %v", n, alone+2, alone+4, b.Commands())
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
		if d := time.Since(began); d > holdfast.Patience(15*time.Second)+100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		began = time.Now()
		release(t, lock)
		if d := time.Since(began); d > holdfast.Patience(15*time.Second)+100*time.Millisecond {
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

// Commands that travel together and that a hook of the client stops have failed, and are tried again: in a bundle as well as
// in a pipeline, as releases of locks with a re-entry id do.
func TestTogetherWhatAHookStops(t *testing.T) {
	for what, opts := range map[string][]holdfast.CallOption{"bundle": nil, "pipeline": {holdfast.WithReentryID("id")}} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			warm(t, r)
			h := &breaker{}
			r.rdb.AddHook(h)
			var locks [3]*holdfast.Lock
			for i := range locks {
				locks[i] = acquire(t, r.Locker, "k"+strconv.Itoa(i), opts...)
			}
			free := stuck(t, r)
			errs := make(chan error, 3)
			for _, lock := range locks {
				go func() { errs <- lock.Release(background) }()
			}
			synctest.Wait()
			h.open.Store(true)
			free()
			synctest.Wait()
			h.open.Store(false)
			for range locks {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if h.n.Load() == 0 {
				t.Errorf("%s: the hook was not asked", what)
			}
			shutdown(t, r.Locker)
		})
	}
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
			time.Sleep(holdfast.LaneRest)
		}
	})
}

// breaker is a go-redis hook that lets nothing through that is of several calls while it is open.
type breaker struct {
	open atomic.Bool
	n    atomic.Int64
}

func (h *breaker) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.open.Load() && isBundle(cmd) {
			h.n.Add(1)
			return errors.New("the breaker is open")
		}
		return next(ctx, cmd)
	}
}

func isBundle(cmd redis.Cmder) bool {
	var args []string
	for _, arg := range cmd.Args() {
		args = append(args, fmt.Sprint(arg))
	}
	return kind(args) == "bundle"
}
func (h *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.open.Load() {
			h.n.Add(1)
			return errors.New("the breaker is open")
		}
		return next(ctx, cmds)
	}
}

// stuck takes as many locks as there are lanes, whose answers wait until free is called. What gathers meanwhile is under way
// before free releases them.
func stuck(t *testing.T, r *replica) (free func()) {
	t.Helper()
	synctest.Wait() // for the lanes of the answers before
	held := make(chan struct{})
	r.link.OnCommand(func(args []string) servertest.Verdict {
		if kind(args) == "acquire" {
			return servertest.HoldReply(held)
		}
		return servertest.Pass
	})
	var all sync.WaitGroup
	var locks [holdfast.MinLanes]*holdfast.Lock
	for i := range locks {
		all.Go(func() {
			var err error
			locks[i], err = r.TryAcquire(background, "stuck"+strconv.Itoa(i), holdfast.WithTTL(time.Minute))
			if err != nil && !errors.Is(err, holdfast.ErrUnavailable) { // it may have taken too long
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	r.link.OnCommand(nil)
	return func() {
		close(held)
		all.Wait()
		synctest.Wait()
		for _, lock := range locks {
			if lock != nil {
				_ = lock.Release(background)
			}
		}
	}
}
