package holdfast

import (
	"context"
	"iter"
	"slices"
)

// lockContext is a context of a held lock: a cancellable child of parent whose Err also looks at the clock. Contexts derived
// from it see the cancellation, not the clock.
type lockContext struct {
	context.Context // from context.WithCancelCause
	parent          context.Context
	lock            *Lock
	cancel          context.CancelCauseFunc
}

// bound is what a hold knows of a context of its lock, so that a forgotten Lock can be collected: not more than how to end
// it.
type bound struct {
	handle int // the number of its Lock
	inner  context.Context
	cancel context.CancelCauseFunc
}

// bind has the context end with h, or with the release of lk where that is a nested handle.
func (h *hold) bind(lk *Lock, inner context.Context, cancel context.CancelCauseFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch ended := h.ended.Load(); {
	case ended != nil:
		cancel(ended.err)
	case lk.number > 0 && lk.released.Load():
		cancel(errReleased)
	default:
		if len(h.contexts) == cap(h.contexts) { // before it grows: under a lock that is held for long many contexts come and go
			h.contexts = slices.DeleteFunc(h.contexts, func(b bound) bool { return b.inner.Err() != nil })
		}
		h.contexts = append(h.contexts, bound{lk.number, inner, cancel})
	}
}

// Err is exact: past the deadline it is non-nil even if no timer has fired yet. Looking cancels the context
// in that case, so that Done never contradicts it.
func (c *lockContext) Err() error {
	if err := c.lock.hold.err(); err != nil {
		c.cancel(err) // the goroutine that ended the hold may not have come to that yet
	}
	return c.Context.Err()
}

// punctual is the context of a lock for a call that has to return in time: its Err goes by the clock of the process and never
// asks Redis, which may be silent.
type punctual struct{ *lockContext }

func (c punctual) Err() error {
	if err := c.lock.hold.lapsed(); err != nil {
		c.cancel(err)
	}
	return c.Context.Err()
}

func inTime(ctx context.Context) context.Context {
	if c, ok := ctx.(*lockContext); ok {
		return punctual{c}
	}
	return ctx
}

type heldKey struct{}

func (c *lockContext) Value(key any) any {
	if _, ok := key.(heldKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// Held returns the locks that ctx carries, innermost first: ctx is, or descends from, their [Lock.Context]. Released
// locks are left out. A lost lock is still included; its Err says so. Of several handles to one hold, see
// [WithReentrancy], Held returns the innermost. Locks of one [Locker.DoAll] come in reverse byte order of their keys.
//
// To ask whether all of them are still held, use [Err], which also looks at released ones.
func Held(ctx context.Context) []*Lock {
	var locks []*Lock
	for c := range carried(ctx) {
		lock := c.lock
		nested := slices.ContainsFunc(locks, func(l *Lock) bool { return l.hold == lock.hold })
		if !nested && !lock.released.Load() {
			locks = append(locks, lock)
		}
	}
	return locks
}

// Err returns nil while every lock that ctx carries is held, and also if ctx carries none. Unlike [Held] it includes
// released locks: a context can outlive its lock through [context.WithoutCancel], and code that runs with it might
// believe that it still holds the lock. Err asks each lock like [Lock.Err]. If several handles to one hold are there, see
// [WithReentrancy], one that is held is enough.
//
// Errors: [ErrLost] if a lock was lost or released; [ErrClosed] if a forced Shutdown abandoned it.
func Err(ctx context.Context) error {
	for c := range carried(ctx) {
		lock := c.lock
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

// carried yields the contexts of locks that ctx is or descends from, innermost first: of every handle, released or not.
func carried(ctx context.Context) iter.Seq[*lockContext] {
	return func(yield func(*lockContext) bool) {
		for {
			c, ok := ctx.Value(heldKey{}).(*lockContext)
			if !ok || !yield(c) {
				return
			}
			ctx = c.parent
		}
	}
}

// outliving returns ctx, but where that descends from the context of a handle to h and would end with its release, one
// that does not: the parent of that, with the deadline of ctx.
func (h *hold) outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	var outside context.Context
	for c := range carried(ctx) {
		if c.lock.hold == h {
			outside = c.parent
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
