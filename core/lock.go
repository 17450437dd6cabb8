package holdfast

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/single"
)

// A Lock is a held lock, which the caller must release. A Lock that is dropped without a Release is renewed at most
// once after it was garbage collected; then its lease expires. The methods of a Lock may be called concurrently.
type Lock struct {
	hold     *hold
	number   int         // of the hold's handles; the first, 0, is the one it began with
	released atomic.Bool // Release was called
}

// Key returns the lock's key as stored in Redis, prefix included.
func (lk *Lock) Key() string { return lk.hold.key() }

// Token returns the fencing token: max(last+1, Redis' time in µs), a hybrid logical clock. It is constant while the
// lock is held, positive and below 2^53. With [WithLimit] and [WithShared] it is larger than the tokens of all earlier
// exclusive holders; readers that share an acquisition share it.
func (lk *Lock) Token() int64 { return lk.hold.token }

// Limit returns how many calls may hold the lock together: n with [WithLimit], 0 for any number with [WithShared], else
// 1.
func (lk *Lock) Limit() int { return lk.hold.cfg.places() }

// Context returns a child of parent that carries the lock, for [Held] and for package sqlfence. The child ends when the
// lock is lost or released, whatever has happened to the context of the acquisition. After a loss its cause matches
// [ErrLost]. Its Deadline is the parent's.
func (lk *Lock) Context(parent context.Context) context.Context { return lk.within(parent, nil) }

func (lk *Lock) within(parent context.Context, call any) context.Context {
	inner, cancel := context.WithCancelCause(parent)
	lk.bind(inner, cancel)
	return &lockContext{Context: inner, parent: parent, lock: lk, call: call, cancel: cancel}
}

// Deadline returns when the lock will count as lost unless a renewal or Extend succeeds, or [Progress] if that is due
// first. That is before Redis drops the lease: 2 ms + ttl/100 earlier for clock drift, and max(25 ms, ttl/20) more for
// the holder to notice. For a lock that has ended it is in the past.
func (lk *Lock) Deadline() time.Time {
	_ = lk.hold.err()
	now := lk.hold.locker.env.Clock.Now()
	left := min(lk.hold.lease.left(now), lk.hold.lease.ends()-now.Mono)
	return lk.hold.locker.env.Clock.Time(now.Mono + left)
}

// Err returns nil while the lock is held, whatever has happened to its contexts. Afterwards the error matches
// [ErrLost], and [ErrClosed] too if a forced Shutdown abandoned the lock, or neither if the lock was released.
//
// Err compares clocks, so it is exact even right after a pause of the process. It asks Redis, within the patience of
// [WithTTL], only if the wall clock shows that the machine was suspended, or was set forward past the lease.
func (lk *Lock) Err() error {
	if err := lk.hold.err(); err != nil || !lk.released.Load() {
		return err
	}
	return errReleased // and held on by another handle
}

// Extend makes the lease in Redis last at least ttl from now, 100 ms to 24 h, or to the end that [WithMaxHold] sets.
// Neither Extend nor a later renewal, which has the TTL of the acquisition, shortens a lease.
//
// Errors: [ErrLost], also after a Release; [ErrUnavailable], after which the lease may have been extended all the same;
// [ErrInvalid].
func (lk *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if ctx == nil {
		return invalid("nil context")
	}
	if ttl < minTTL || ttl > maxTTL {
		return invalid("Extend(%v): want %v to %v", ttl, minTTL, maxTTL)
	}
	if err := lk.hold.locker.store.Check(single.Want{TTL: max(ttl, lk.hold.cfg.ttl)}); err != nil {
		return err
	}
	defer runtime.KeepAlive(lk) // or the scheduler takes the hold for a forgotten one
	return lk.hold.extend(ctx, ttl.Truncate(time.Millisecond))
}

// Release frees the lock and ends its context. It works even if ctx has ended. It returns when ctx ends, or 20 ms later
// if ctx had ended before, and in any case after 5 s, or a TTL if that is less. If Redis has not answered by then, the
// release is retried in the background until the lease has expired.
//
// Release returns nil only if the lock was held until then. Errors: [ErrLost], as [Lock.Err] had it, if the lock was
// lost or abandoned before; [ErrUnavailable] if Redis did not confirm the release. A second Release returns what the
// first one returned.
func (lk *Lock) Release(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	return lk.release(ctx)
}

func (lk *Lock) release(ctx context.Context) error {
	defer runtime.KeepAlive(lk)
	ctx, stop := lk.hold.outliving(inTime(ctx)) // or the release itself would leave its answer releaseGrace
	defer stop()
	if lk.drop() {
		return lk.hold.free(ctx)
	}
	return lk.hold.lapsed()
}

// nest is one more handle to the hold of lk; nil if the hold is being released.
func (lk *Lock) nest() *Lock {
	h := lk.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handles.open == 0 || h.ended.Load() != nil {
		return nil
	}
	h.handles.open++
	h.handles.nested++
	return &Lock{hold: h, number: int(h.handles.nested)}
}

// bind has the context end with the hold, or with the release of lk where that is a nested handle.
func (lk *Lock) bind(inner context.Context, cancel context.CancelCauseFunc) {
	h := lk.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	hs := &h.handles
	switch ended := h.ended.Load(); {
	case ended != nil:
		cancel(ended.err)
	case lk.number > 0 && lk.released.Load():
		cancel(errReleased)
	default:
		if len(hs.contexts) == cap(hs.contexts) { // before it grows: under a lock that is held for long many contexts come and go
			hs.contexts = slices.DeleteFunc(hs.contexts, func(b bound) bool { return b.inner.Err() != nil })
		}
		hs.contexts = append(hs.contexts, bound{lk.number, inner, cancel})
	}
}

// drop counts lk out, once, and reports whether no handle is left. The contexts of a nested handle end with it. Those
// of the outermost handle are parents of contexts that go on, so they stay.
func (lk *Lock) drop() (last bool) {
	h := lk.hold
	h.mu.Lock()
	hs := &h.handles
	if !lk.released.Swap(true) {
		hs.open--
	}
	last = hs.open == 0
	var own []bound
	if lk.number > 0 {
		hs.contexts = slices.DeleteFunc(hs.contexts, func(b bound) bool {
			if b.handle == lk.number {
				own = append(own, b)
			}
			return b.handle == lk.number
		})
	}
	h.mu.Unlock()
	for _, b := range own {
		b.cancel(errReleased)
	}
	return last
}
