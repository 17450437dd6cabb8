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
		m.hold(c, ctx, func(ctx context.Context) error { return releaseAll(ctx, locks) }) // DoAll has another bound
		return nil
	}, m.lock...)
	switch {
	case ran:
	case errors.Is(err, holdfast.ErrLost): // while it waited for another: nothing ran
		m.refuse(c, fmt.Errorf("%w: %v", holdfast.ErrUnavailable, err))
	default:
		m.without(c, err)
	}
}

// taken are the locks of inner that outer has not. What happens to others is told where they were taken.
func taken(outer, inner context.Context) []*holdfast.Lock {
	return slices.DeleteFunc(holdfast.Held(inner), func(lock *holdfast.Lock) bool { return has(outer, lock) })
}

// releaseAll releases locks at once: each is a round trip.
func releaseAll(ctx context.Context, locks []*holdfast.Lock) error {
	var all sync.WaitGroup
	errs, panics := make([]error, len(locks)), make(chan any, len(locks))
	for i, lock := range locks {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil { // of a hook: for the Recovery of the request
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
