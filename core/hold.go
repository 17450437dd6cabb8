package core

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	forever = time.Duration(math.MaxInt64)
	// reportAfter leases a hold is reported as long.
	reportAfter = 20
	// releasePatience bounds a Release whose context never ends, with the TTL.
	releasePatience = 5 * time.Second
)

// hold is the state behind a Lock. The scheduler reaches holds and not Locks, so that a forgotten Lock can be
// collected.
//
// The lock is held while ended is nil and the clock is before the deadline. Deadlines rest on when a command
// was sent, never on when its answer came: Redis began to count the lease later than that, so it ends later
// there too, and a rival cannot have the lock before.
type hold struct {
	locker *Locker
	tenure ownership
	queue  *queue // of which it is at the front, or nil
	token  int64
	cfg    *config
	limit  time.Duration // WithMaxHold; forever without
	began  time.Duration
	handle weak.Pointer[Lock]

	deadline atomic.Int64 // monotonic, since the clock's base
	wall     atomic.Int64 // the same moment as the wall clock saw it coming; Unix, ns
	leased   atomic.Int64 // how long the lease behind the deadline is from its beginning
	longest  atomic.Int64 // the longest lease that Extend asked for
	whole    atomic.Bool  // some lease was as long as the TTL, as that of a grant is not at first
	ended    atomic.Pointer[ending]
	mu       sync.Mutex // orders what ends a hold and what prolongs it; never held during I/O or in hooks
	verify   sync.Mutex // one question to Redis at a time; held during I/O

	// Guarded by mu.
	cancel    context.CancelCauseFunc // of the Lock's context, once there is one
	uses      int                     // handles that are not released
	releasing bool                    // Release was called
	through   bool                    // and has its result
	done      chan struct{}           // closed then, if somebody waits for it
	result    error

	// Guarded by the scheduler's mutex.
	index   int           // in its heap, -1 outside
	next    time.Duration // when to look at this hold
	renewAt time.Duration
	asked   bool          // a renewal is under way
	report  time.Duration // next LongHold, since began
}

// ending is why a hold is over.
type ending struct{ err error }

var releasedEnding = &ending{errReleased}

// errUnconfirmed: the wall clock ran past the lease while the monotonic one did not, and Redis did not say
// that the lock is still ours.
var (
	errExpired     = errors.New("the lease ran out before a renewal succeeded")
	errOtherOwner  = errors.New("redis no longer has it as ours")
	errMaxHold     = errors.New("held for as long as WithMaxHold allows")
	errAbandoned   = errors.New("the Lock became unreachable without a Release")
	errUnconfirmed = errors.New("the machine's clock jumped past the lease and redis did not confirm the lock")
)

func (h *hold) key() string { return h.tenure.data().names.Lock }

// trust sets the deadline from a command that was sent at at and left the lease with d to run. It never takes
// the deadline back: no script shortens a lease.
func (h *hold) trust(at timing.Instant, d time.Duration) {
	if e := leaseFrom(at, d); int64(min(e.end.Mono, h.limit)) > h.deadline.Load() {
		h.setLease(e)
	}
}

func (h *hold) setLease(e lease) {
	h.deadline.Store(int64(min(e.end.Mono, h.limit)))
	h.wall.Store(e.end.Wall) // also where that is earlier: somebody set the clock back
	h.leased.Store(int64(e.full))
	if e.full >= h.cfg.ttl {
		h.whole.Store(true)
	}
}

// getLease is what the next holder of the tenure can rely on.
func (h *hold) getLease() lease {
	end := timing.Instant{Mono: time.Duration(h.deadline.Load()), Wall: h.wall.Load()}
	return lease{end, time.Duration(h.leased.Load())}
}

// confirm is trust for a hold in use: an answer that comes after the hold has ended, or after its deadline,
// revives nothing.
func (h *hold) confirm(at timing.Instant, d time.Duration) error {
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.clock.Now().Mono < time.Duration(h.deadline.Load()) {
		h.trust(at, d)
	}
	h.mu.Unlock()
	return h.lapsed()
}

// err is nil while the lock is held.
func (h *hold) err() error {
	for {
		if e := h.ended.Load(); e != nil {
			return e.err
		}
		now := h.locker.clock.Now()
		if now.Mono >= time.Duration(h.deadline.Load()) {
			h.expire()
			continue
		}
		if now.Wall < h.wall.Load() {
			return nil
		}
		h.ask()
	}
}

// lapsed is err by the monotonic clock alone: it never asks Redis.
func (h *hold) lapsed() error {
	if h.ended.Load() == nil && h.locker.clock.Now().Mono >= time.Duration(h.deadline.Load()) {
		h.expire()
	}
	if e := h.ended.Load(); e != nil {
		return e.err
	}
	return nil
}

// expire ends the hold if its deadline has passed.
func (h *hold) expire() {
	reason := errExpired
	if time.Duration(h.deadline.Load()) >= h.limit {
		reason = errMaxHold
	}
	h.end(func() bool { return h.locker.clock.Now().Mono >= time.Duration(h.deadline.Load()) }, h.loss(reason))
}

func (h *hold) loss(reason error) error {
	return &opError{act: "hold", key: h.key(), outcome: ErrLost, cause: reason}
}

// lose ends the hold at once.
func (h *hold) lose(reason error) { h.end(nil, h.loss(reason)) }

// end moves the hold to its end, once, if cond (which may be nil) still holds. It reports whether this call
// did it. A concurrent confirm is either before, and cond sees it, or after, and finds the hold ended.
func (h *hold) end(cond func() bool, err error) bool {
	e := releasedEnding
	if err != errReleased {
		e = &ending{err}
	}
	h.mu.Lock()
	if h.ended.Load() != nil || cond != nil && !cond() {
		h.mu.Unlock()
		return false
	}
	clock := h.locker.clock.Now()
	now := clock.Mono
	if errors.Is(err, ErrLost) {
		// First, so that nobody who sees the end sends another renewal. What is left of the lease stays, unless others
		// have the lock: something that has not noticed may still run under it.
		left := max(0, min(time.Duration(h.deadline.Load())-now, time.Duration(h.wall.Load()-clock.Wall)))
		left += timing.Margin(time.Duration(h.leased.Load()))
		if errors.Is(err, errOtherOwner) {
			left = 0
		}
		h.tenure.lost(left)
	}
	h.ended.Store(e)
	h.deadline.Store(min(h.deadline.Load(), int64(now)))
	cancel := h.cancel
	h.mu.Unlock()

	defer h.locker.gate.Leave()
	if cancel != nil {
		cancel(err)
	}
	h.locker.sched.remove(h)
	if err != errReleased {
		h.tenure.over()
		if h.queue != nil {
			h.queue.leave()
		}
		h.cfg.traces.emit(lost, Event{Key: h.key(), Token: h.token, Elapsed: now - h.began, Err: err})
	}
	return true
}

func (h *hold) failed(err error) {
	h.cfg.traces.emit(nodeError, Event{Key: h.key(), Token: h.token, Err: err})
}

// drop counts lk out, once, and reports whether no handle is left. The context of a nested handle ends with it;
// that of the outermost is above those that go on.
func (h *hold) drop(lk *Lock) (last bool) {
	h.mu.Lock()
	if !lk.released.Swap(true) {
		h.uses--
	}
	last = h.uses == 0
	h.mu.Unlock()
	if h.handle.Value() != lk {
		lk.context().cancel(errReleased)
	}
	return last
}

func (h *hold) release(ctx context.Context) error {
	h.mu.Lock()
	first, through, result := !h.releasing, h.through, h.result
	h.releasing = true
	if !first && h.done == nil {
		h.done = make(chan struct{})
	}
	done := h.done
	h.mu.Unlock()
	switch {
	case first:
	case through:
		return result
	default:
		select {
		case <-done:
			return h.result
		case <-ctx.Done():
			return &opError{act: "release", key: h.key(), outcome: ErrUnavailable, context: ctx.Err()}
		}
	}

	h.locker.gate.Join()
	defer h.locker.gate.Leave()
	func() {
		finished := false
		defer func() {
			if !finished { // a hook panicked
				result = &opError{act: "release", key: h.key(), outcome: ErrUnavailable}
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.through, h.result = true, result
			if h.done != nil {
				close(h.done)
			}
		}()
		result = h.finish(ctx)
		finished = true
	}()
	now := h.locker.clock.Now().Mono
	h.cfg.traces.emit(released, Event{Key: h.key(), Token: h.token, Elapsed: now - h.began, Err: result})
	return result
}

// finish ends the hold and frees the lock, or hands it over.
func (h *hold) finish(ctx context.Context) error {
	_ = h.lapsed() // a deadline that has passed makes it a loss, not a release
	e := h.getLease()
	if h.end(nil, errReleased) {
		if h.queue != nil {
			if h.queue.handOver(h, e) {
				return nil
			}
			h.queue.leave() // the next may stand in line in Redis before the lock is free there: that is as good
		}
		return h.forget(ctx)
	}
	if errors.Is(h.err(), ErrClosed) {
		return h.forget(ctx)
	}
	// The handler is through, so what Redis may still have of it can go. Where another owner has the key this
	// does nothing.
	h.forgetLater()
	return h.err()
}

func (h *hold) forget(ctx context.Context) error {
	outcome, cause := h.tenure.forget(ctx, min(h.cfg.ttl, releasePatience))
	// Not before: a message of the grant that comes now would have it undone beside this release, which then looked
	// like the release of a lock that was lost.
	h.tenure.over()
	if outcome == nil {
		return nil
	}
	fail := &opError{act: "release", key: h.key(), outcome: outcome, cause: cause}
	if outcome == ErrUnavailable {
		fail.context = ctx.Err()
		h.forgetLater()
		h.failed(cause)
	}
	return fail
}

// forgetLater goes on releasing until the longest lease that Redis may have for this tenure is over.
func (h *hold) forgetLater() {
	h.locker.gate.Join()
	go func() {
		defer h.locker.gate.Leave()
		_, _ = h.tenure.forget(h.locker.gate.Over, max(h.cfg.ttl, time.Duration(h.longest.Load())))
	}()
}
