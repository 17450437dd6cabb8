package holdfast_test

import (
	"context"
	"errors"
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

// Lanes that hang cost a call behind them its patience and no more, and do not fail one that does not wait, while Redis serves.
func TestCommandsPassALaneThatHangs(t *testing.T) {
	for _, take := range []func(*testing.T, *holdfast.Locker, string, ...holdfast.CallOption) *holdfast.Lock{await, acquire} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			free := stuck(t, r)
			time.Sleep(100 * time.Millisecond)
			most := holdfast.Patience(15*time.Second) + 100*time.Millisecond
			begin := time.Now()
			lock := take(t, r.Locker, "k")
			lasted(t, begin, 0, most)
			begin = time.Now()
			release(t, lock)
			lasted(t, begin, 0, most)
			free()
		})
	}
}

// A command that nobody listens to any more is not sent late.
func TestLanesDropWhatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.ReadTimeout = 10 * time.Minute })
		warm(t, r)
		free := stuck(t, r)
		release(t, await(t, r.Locker, "k")) // the first one waits for a lane
		time.Sleep(2 * time.Minute)
		free()
		unheld(t, b, "k") // not taken by a call that has ended
		shutdown(t, r.Locker)
	})
}

// Commands that travel together and that a hook of the client stops have failed, and are tried again: in a bundle as well as
// in a pipeline, as releases of locks with a re-entry id do.
func TestTogetherWhatAHookStops(t *testing.T) {
	for what, opts := range map[string][]holdfast.CallOption{"bundle": nil, "pipeline": {holdfast.WithReentryID("id")}} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			var open atomic.Bool
			var n atomic.Int64
			stop := func(together bool) error {
				if !open.Load() || !together {
					return nil
				}
				n.Add(1)
				return errors.New("the breaker is open")
			}
			r.rdb.AddHook(hook{func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if err := stop(kind(argsOf(cmd)) == "bundle"); err != nil {
					return err
				}
				return next(ctx, cmd)
			}, func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
				if err := stop(true); err != nil {
					return err
				}
				return next(ctx, cmds)
			}})
			warm(t, r)
			var locks [3]*holdfast.Lock
			for i := range locks {
				locks[i] = acquire(t, r.Locker, "k"+strconv.Itoa(i), opts...)
			}
			free := stuck(t, r)
			var all sync.WaitGroup
			for _, lock := range locks {
				all.Go(func() { release(t, lock) })
			}
			synctest.Wait()
			open.Store(true)
			free()
			synctest.Wait()
			open.Store(false)
			all.Wait()
			if n.Load() == 0 {
				t.Errorf("%s: the hook was not asked", what)
			}
			shutdown(t, r.Locker)
		})
	}
}

// A command that comes in the very moment in which a lane stops waiting for one is not lost with it.
func TestCommandMeetsTheEndOfARest(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for range 300 {
			begin := time.Now()
			release(t, await(t, r.Locker, "k"))
			lasted(t, begin, 0, 10*time.Millisecond)
			time.Sleep(holdfast.LaneRest)
		}
	})
}

// stuck takes as many locks as there are lanes, whose answers wait until free is called. What gathers meanwhile is under way
// before free releases them.
func stuck(t *testing.T, r *replica) (free func()) {
	t.Helper()
	synctest.Wait() // for the lanes of the answers before
	held := make(chan struct{})
	r.link.OnCommand(every("acquire", servertest.HoldReply(held)))
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
