package holdfast

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// A Lock is a held lock. [Locker.Acquire] and [Locker.TryAcquire] return it, and the caller must release it. A Lock that
// is dropped without a Release is renewed at most once after it was garbage collected; then its lease expires. That does
// not hold for a nested handle: see [WithReentrancy]. The methods of a Lock may be called concurrently.
type Lock struct {
	hold     *hold
	number   int         // of the hold's handles; the first, 0, is the one it began with
	released atomic.Bool // Release was called
}

// newLock makes the lock of a lease that a's tenure has from then on, as now shows.
func newLock(a *acquisition, e lease, from, now time.Duration) *Lock {
	l := a.locker
	t := a.stake
	h := t.newHold()
	*h = hold{
		locker: l, stake: t, queue: a.queue, token: t.token + int64(t.handed),
		cfg: a.cfg, began: now,
		index: -1, report: reportAfter * a.cfg.ttl, uses: 1,
	}
	h.limit = forever
	if a.cfg.maxHold > 0 && a.cfg.maxHold < forever-from {
		h.limit = from + a.cfg.maxHold
	}
	h.setLease(e)
	joins := t.sharing != nil
	switch {
	case h.queue == nil:
	case h.cfg.limit == protocol.NoLimit:
		h.queue = nil
		a.queue.share(h, e)
	default:
		h.queue.holds(h)
	}
	a.queue = nil
	lock := &Lock{hold: h}
	h.lock = lock
	l.env.Gate.Join() // until the hold ends
	if !l.sched.add(h) {
		h.end(l.env.Now(), nil, &opError{act: "hold", key: h.key(), outcome: ErrClosed})
	} else if joins {
		t.sharing.enters(h)
	}
	return lock
}

// nest is one more handle to the hold of lk; nil if the hold is being released.
func (lk *Lock) nest() *Lock {
	h := lk.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uses == 0 || h.ended.Load() != nil {
		return nil
	}
	h.uses++
	h.nested++
	return &Lock{hold: h, number: int(h.nested)}
}

// Key returns the lock's key as stored in Redis, prefix included. It is the default resource for a fence.
func (lk *Lock) Key() string { return lk.hold.key() }

// Token returns the fencing token of this acquisition. It is larger than every token that Redis issued for the key
// before, constant while the lock is held, positive and below 2^53. With [WithLimit] and [WithShared] it is larger than
// the tokens of all earlier exclusive holders. Readers that share an acquisition share its token.
func (lk *Lock) Token() int64 { return lk.hold.token }

// Limit returns how many calls may hold the lock together: n with WithLimit(n), 0 for any number with [WithShared], and 1
// otherwise.
func (lk *Lock) Limit() int {
	if n := lk.hold.cfg.limit; n != protocol.NoLimit {
		return n
	}
	return 0
}

// Context returns a child of parent that carries the lock, for [Held] and for package sqlfence. The child ends when the
// lock is lost or released, whatever has happened to the context of the acquisition. After a loss its cause matches
// [ErrLost]. Its Deadline is the parent's; that of the lease, see [Lock.Deadline], moves with each renewal.
func (lk *Lock) Context(parent context.Context) context.Context {
	inner, cancel := context.WithCancelCause(parent)
	lk.hold.bind(lk, inner, cancel)
	return &lockContext{Context: inner, parent: parent, lock: lk, cancel: cancel}
}

// Deadline returns when the lock will count as lost unless a renewal or Extend succeeds. That is before Redis drops the
// lease: 2 ms + ttl/100 earlier for clock drift, and max(25 ms, ttl/20) more for the holder to notice. The deadline moves
// with each renewal. For a lock that has ended it is in the past.
func (lk *Lock) Deadline() time.Time {
	_ = lk.hold.err()
	now := lk.hold.locker.env.Clock.Now()
	left := min(time.Duration(lk.hold.deadline.Load())-now.Mono, time.Duration(lk.hold.wall.Load()-now.Wall))
	return lk.hold.locker.env.Clock.Time(now.Mono + left)
}

// Err returns nil while the lock is held, whatever has happened to its contexts. Afterwards the error matches [ErrLost]
// if the lock was lost, [ErrClosed] if a forced Shutdown abandoned it, and neither if it was released.
//
// Err compares clocks, so it is exact even right after a pause of the process. It asks Redis only if the wall clock shows
// that the machine was suspended, or was set forward past the lease: once, and for at most a quarter of the TTL, or 1 s
// if that is less.
func (lk *Lock) Err() error {
	if err := lk.hold.err(); err != nil || !lk.released.Load() {
		return err
	}
	return errReleased // and held on by another handle
}

// Extend makes the lease in Redis last at least ttl from now, 100 ms to 24 h. It never shortens a lease. With
// [WithMaxHold] it extends the lease to the end of the hold at most, and returns nil all the same. The Lock counts as
// lost somewhat earlier, at its [Lock.Deadline], which is computed with this ttl. Renewal goes on with the TTL of the
// acquisition, and does not shorten the extended lease.
//
// Errors: [ErrLost], also after a Release; [ErrUnavailable] if Redis did not answer before ctx or the lease ended, in
// which case the lease may have been extended all the same; [ErrInvalid].
func (lk *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if ctx == nil {
		return invalid("nil context")
	}
	if ttl < minTTL || ttl > maxTTL {
		return invalid("Extend(%v): want %v to %v", ttl, minTTL, maxTTL)
	}
	if err := lk.hold.locker.store.covers(ttl); err != nil {
		return err
	}
	defer runtime.KeepAlive(lk) // or the scheduler takes the hold for a forgotten one
	return lk.hold.extend(ctx, ttl.Truncate(time.Millisecond))
}

// Release frees the lock and ends its context. It works even if ctx has ended. It returns when ctx ends, or 20 ms later if
// ctx had ended before, and in any case after 5 s, or a TTL if that is less. If Redis has not answered by then, the release
// is retried in the background until the lease has expired.
//
// If another call of the process takes the lock over, see [WithLocalHandover], Redis is not asked: what Redis may have
// lost since the last renewal becomes the loss of that call. [WithReleaseInBackground] does not wait for Redis. With
// [WithReentrancy] the lock is free when the last handle to its hold is released.
//
// Errors: [ErrLost] if the lock was lost before; [ErrUnavailable] if Redis did not confirm the release. For a lock that a
// forced Shutdown abandoned, Release returns nil if Redis still had it, and otherwise ErrLost. A second Release returns
// what the first one returned.
func (lk *Lock) Release(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	return lk.release(ctx, nil)
}

func (lk *Lock) release(ctx context.Context, reason error) error {
	defer runtime.KeepAlive(lk)
	ctx, stop := lk.hold.outliving(inTime(ctx)) // or the release itself would leave its answer releaseGrace
	defer stop()
	if lk.hold.drop(lk) {
		return lk.hold.release(ctx, reason)
	}
	return lk.hold.lapsed()
}
