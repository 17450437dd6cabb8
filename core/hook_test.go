package core_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

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
