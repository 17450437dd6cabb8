package core

import (
	"context"
	"iter"
	"slices"
)

// lockContext is the context of a held lock: a cancellable child of the acquisition's context whose Err also
// looks at the clock. Contexts derived from it see the cancellation, not the clock.
type lockContext struct {
	context.Context // from context.WithCancelCause
	lock            *Lock
	cancel          context.CancelCauseFunc
}

// Err is exact: past the deadline it is non-nil even if no timer has fired yet. Looking cancels the context
// in that case, so that Done never contradicts it.
func (c *lockContext) Err() error {
	if err := c.lock.hold.err(); err != nil {
		c.cancel(err) // whoever ended it may not have come to that yet
	}
	return c.Context.Err()
}

type heldKey struct{}

func (c *lockContext) Value(key any) any {
	if _, ok := key.(heldKey); ok {
		return c.lock
	}
	return c.Context.Value(key)
}

// Held returns the locks that ctx carries, innermost first: those acquired with it or with a context it
// descends from, unless they were released; of a nested one the innermost handle. One that was lost is still
// there; its Err says so. [Err] asks about all that ctx carries, released ones too.
func Held(ctx context.Context) []*Lock {
	var locks []*Lock
	for lock := range carried(ctx) {
		nested := slices.ContainsFunc(locks, func(l *Lock) bool { return l.hold == lock.hold })
		if !nested && !lock.released.Load() {
			locks = append(locks, lock)
		}
	}
	return locks
}

// Err is nil while every lock that ctx carries is held. A context outlives its lock behind a
// [context.WithoutCancel]: what runs with it then takes itself for a holder and is none. Locks are asked as by
// [Lock.Err]; of a nested lock, and of one shared by [WithReentryID], one handle is enough.
//
// Errors: [ErrLost], also where the lock was released; [ErrClosed] where a Shutdown gave it up.
func Err(ctx context.Context) error {
	for lock := range carried(ctx) {
		err := lock.Err()
		if err == errReleased {
			err = nil
			same := func(l *Lock) bool { return l.Key() == lock.Key() && l.Token() == lock.Token() && l.Err() == nil }
			if !slices.ContainsFunc(Held(ctx), same) {
				err = lock.hold.loss(errReleased)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// carried yields the locks of ctx, innermost first: every handle, released or not.
func carried(ctx context.Context) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		for {
			lock, ok := ctx.Value(heldKey{}).(*Lock)
			if !ok || !yield(lock) {
				return
			}
			ctx = lock.context().Context // past the lock's own context: the next one outwards
		}
	}
}

// outliving returns ctx, but where that descends from the context of a handle to h and would end with its release, one
// that does not: that of the acquisition, with the deadline of ctx.
func (h *hold) outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	var outside context.Context
	for lock := range carried(ctx) {
		if lock.hold == h {
			outside = lock.parent
		}
	}
	if outside == nil || ctx.Err() != nil && context.Cause(ctx) != errReleased {
		return ctx, func() {}
	}
	if end, ok := ctx.Deadline(); ok {
		return context.WithDeadline(outside, end)
	}
	return outside, func() {}
}
