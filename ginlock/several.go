package ginlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// handleAll is handle with [WithAlso].
func (m *middleware) handleAll(c *gin.Context) {
	if unmatched(c) {
		return
	}
	var keys []string
	for _, t := range append([]target{m.target}, m.also...) {
		key, err := t.key(c)
		if err != nil {
			m.refuse(c, err)
			return
		}
		keys = append(keys, key)
	}
	outer, ran := c.Request.Context(), false
	err := m.locker.DoAll(outer, keys, func(ctx context.Context) error {
		ran = true
		locks := taken(outer, ctx)
		m.hold(c, ctx, func(ctx context.Context) error { return releaseAll(ctx, locks) }) // released here: DoAll has another bound
		return nil
	}, m.lock...)
	switch {
	case ran:
	case errors.Is(err, holdfast.ErrLost): // while DoAll waited for another lock: nothing ran
		m.refuse(c, fmt.Errorf("%w: %v", holdfast.ErrUnavailable, err))
	default:
		m.without(c, err)
	}
}

// taken returns the locks that inner carries and outer does not. What happens to the others is reported where they were
// taken.
func taken(outer, inner context.Context) []*holdfast.Lock {
	return slices.DeleteFunc(holdfast.Held(inner), func(lock *holdfast.Lock) bool { return has(outer, lock) })
}

// releaseAll releases all locks at the same time, since each release is a round trip.
func releaseAll(ctx context.Context, locks []*holdfast.Lock) error {
	var all sync.WaitGroup
	errs, panics := make([]error, len(locks)), make(chan any, len(locks))
	for i, lock := range locks {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil { // in a hook: passed on to the request's Recovery
					panics <- p
				}
			}()
			errs[i] = release(ctx, lock)
		})
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
		return errors.Join(errs...)
	}
}
