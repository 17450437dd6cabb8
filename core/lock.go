package holdfast

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// Lock is a held lock. [Locker.Acquire] and [Locker.TryAcquire] make it, and their caller must release it. A Lock that was
// dropped without that is renewed once at most after it was garbage collected, and then its lease runs out. Its methods may
// be called concurrently.
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

// Key is the lock's key as stored in Redis, prefix included: the default resource for a fence.
func (lk *Lock) Key() string { return lk.hold.key() }

// Token is the fencing token of this acquisition: larger than every token that Redis issued before for the key,
// constant while held, positive and below 2^53. With [WithLimit] and [WithShared] it is larger than those of all exclusive holders
// before, and readers that share an acquisition share it.
func (lk *Lock) Token() int64 { return lk.hold.token }

// Limit is how many may hold the lock together, as [WithLimit] named it: 1 if the holder is alone, 0 with [WithShared].
func (lk *Lock) Limit() int {
	if n := lk.hold.cfg.limit; n != protocol.NoLimit {
		return n
	}
	return 0
}

// Context returns a child of parent that ends when the lock is lost or released, whatever the context of the acquisition has
// come to. It carries the lock, for [Held] and for package sqlfence. Its cause is an [ErrLost] after a loss. Its Deadline is
// the parent's, not that of the lease, which moves with each renewal.
func (lk *Lock) Context(parent context.Context) context.Context {
	inner, cancel := context.WithCancelCause(parent)
	lk.hold.bind(lk, inner, cancel)
	return &lockContext{Context: inner, parent: parent, lock: lk, cancel: cancel}
}

// Deadline is when the lock counts as lost if no renewal or Extend succeeds: earlier than Redis drops it, by
// 2 ms + ttl/100 for clock drift and max(25 ms, ttl/20) for the holder to notice. It moves with each
// renewal. For an ended lock it is in the past.
func (lk *Lock) Deadline() time.Time {
	_ = lk.hold.err()
	now := lk.hold.locker.env.Clock.Now()
	left := min(time.Duration(lk.hold.deadline.Load())-now.Mono, time.Duration(lk.hold.wall.Load()-now.Wall))
	return lk.hold.locker.env.Clock.Time(now.Mono + left)
}

// Err is nil while the lock is held, whatever became of its context. Afterwards it matches [ErrLost] if the lock was lost,
// [ErrClosed] if a Shutdown gave it up, and neither if it was released. It compares clocks and is
// exact, also right after the process was paused. Only where the wall clock shows that the machine was
// suspended (or somebody set it forward past the lease) does it ask Redis, for at most a quarter of the TTL,
// or 1 s if that is less, and once.
func (lk *Lock) Err() error {
	if err := lk.hold.err(); err != nil || !lk.released.Load() {
		return err
	}
	return errReleased // and held on by another handle
}

// Extend makes the lease last at least ttl (100 ms to 24 h) from now; it never shortens one. Renewal goes on with the TTL of
// the acquisition. With [WithMaxHold] the lease is not extended beyond that. The lease is that in Redis; the Lock counts as
// lost somewhat earlier, at its [Lock.Deadline], computed with this ttl.
//
// Errors: [ErrLost], after a Release too; [ErrUnavailable] when Redis did not answer before ctx or the lease ended,
// in which case it may have been extended all the same; [ErrInvalid].
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

// Release frees the lock and ends its context. It works whether or not ctx has ended. It returns when ctx
// ends, or 20 ms later if ctx had ended before, and at the latest after 5 s, or a TTL if that is less. Where Redis has not
// answered by then, the attempts go on in the background for a TTL.
//
// Where another call of the process takes the lock over, see [WithLocalHandover], Redis is not asked: what it may
// have lost since the last renewal becomes the loss of that call.
//
// Errors: [ErrLost] if the lock was lost before; [ErrUnavailable] if Redis did not confirm; none for a lock that a Shutdown gave
// up, if Redis had it until now, else ErrLost. Releasing again
// returns what the first call returned. With [WithReentrancy] the last handle of a hold frees it. With
// [WithReleaseInBackground] it does not wait for Redis.
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
