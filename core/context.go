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
	call            any // the one that took the lock, or nil
	cancel          context.CancelCauseFunc
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
// locks are left out; lost ones are not: see [Err]. Of several handles to one hold, Held returns the innermost.
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

// Taken returns the locks that the innermost call around ctx took, in byte order of their keys. Unlike [Held] it leaves
// out what that call's own context held. It is for adapters.
func Taken(ctx context.Context) []*Lock {
	var locks []*Lock
	var call any
	for c := range carried(ctx) {
		if len(locks) > 0 && (call == nil || c.call != call) {
			break
		}
		call, locks = c.call, append(locks, c.lock)
	}
	locks = slices.DeleteFunc(locks, func(l *Lock) bool { return l.number > 0 })
	slices.Reverse(locks)
	return locks
}

// Err returns nil while every lock that ctx carries is held, and also if ctx carries none. Unlike [Held] it includes
// released locks: code that runs with [context.WithoutCancel] can outlive its lock and believe that it still holds it.
// Of several handles to one hold, one that is held is enough.
//
// Errors: [ErrLost] if a lock was lost or released, and [ErrClosed] too as in [Lock.Err].
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

// outliving returns a context for the release of h. Usually that is ctx. If ctx descends from a context of h, it would end
// with the release; then the parent of that context takes its place, with the deadline of ctx.
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
