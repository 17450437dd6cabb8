package core

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"weak"
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
	tenure *tenure
	key    string
	token  int64
	traces traces
	ttl    time.Duration
	renews bool
	limit  time.Duration // WithMaxHold; forever without
	began  time.Duration
	cancel context.CancelCauseFunc
	handle weak.Pointer[Lock]

	deadline atomic.Int64 // monotonic, since the clock's base
	wall     atomic.Int64 // the same moment as the wall clock saw it coming; Unix, ns
	longest  atomic.Int64 // the longest lease that Extend asked for
	ended    atomic.Pointer[ending]
	mu       sync.Mutex // orders what ends a hold and what prolongs it; never held during I/O or in hooks
	verify   sync.Mutex // one question to Redis at a time; held during I/O

	uses   int           // handles that are not released; guarded by mu
	done   chan struct{} // guarded by mu; closed when the first Release has its result
	result error

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

// trust sets the deadline from a command that was sent at at and left the lease with d to run. It never takes
// the deadline back: no script shortens a lease.
func (h *hold) trust(at instant, d time.Duration) {
	d -= margin(d)
	if end := int64(min(at.mono+d, h.limit)); end > h.deadline.Load() {
		h.deadline.Store(end)
		h.wall.Store(at.wall + int64(d)) // also where that is earlier: somebody set the clock back
	}
}

// confirm is trust for a hold in use: an answer that comes after the hold has ended, or after its deadline,
// revives nothing.
func (h *hold) confirm(at instant, d time.Duration) error {
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.clock.now().mono < time.Duration(h.deadline.Load()) {
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
		now := h.locker.clock.now()
		if now.mono >= time.Duration(h.deadline.Load()) {
			h.expire()
			continue
		}
		if now.wall < h.wall.Load() {
			return nil
		}
		h.ask()
	}
}

// lapsed is err by the monotonic clock alone: it never asks Redis.
func (h *hold) lapsed() error {
	if h.ended.Load() == nil && h.locker.clock.now().mono >= time.Duration(h.deadline.Load()) {
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
	h.end(func() bool { return h.locker.clock.now().mono >= time.Duration(h.deadline.Load()) }, h.loss(reason))
}

func (h *hold) loss(reason error) error {
	return &opError{act: "hold", key: h.key, outcome: ErrLost, cause: reason}
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
	h.ended.Store(e)
	now := h.locker.clock.now().mono
	h.deadline.Store(min(h.deadline.Load(), int64(now)))
	h.mu.Unlock()

	h.cancel(err)
	h.locker.sched.remove(h)
	if err != errReleased {
		h.traces.emit(lost, Event{Key: h.key, Token: h.token, Elapsed: now - h.began, Err: err})
	}
	h.locker.gate.leave()
	return true
}

// ask verifies the hold with Redis after the wall clock went past the lease and the monotonic clock did not:
// a suspended machine, whose rivals went on, or somebody who set the clock, and nothing happened. What Redis
// says is left replaces both deadlines: after a suspension the monotonic one comes too late.
func (h *hold) ask() {
	h.verify.Lock()
	defer h.verify.Unlock()
	now := h.locker.clock.now()
	if h.ended.Load() != nil || now.wall < h.wall.Load() {
		return // another caller has asked meanwhile
	}
	var lease time.Duration
	if h.renews {
		lease = h.lease(now.mono, h.ttl)
	}
	timer := h.tenure.node.timer(patience(h.ttl))
	defer h.tenure.node.rest(timer)
	c := h.startRenew(context.Background(), lease)
	select {
	case <-c.done:
	case <-timer.C:
		h.lose(errUnconfirmed)
		return
	}
	left, ok := c.val.(int64)
	switch {
	case c.err != nil || !ok:
		h.lose(errUnconfirmed)
		return
	case left == 0:
		h.lose(errOtherOwner)
		return
	case left < 0: // somebody made the key persistent
		left = h.ttl.Milliseconds()
	}
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.clock.now().mono < time.Duration(h.deadline.Load()) {
		d := time.Duration(left) * time.Millisecond
		d -= margin(d)
		h.deadline.Store(int64(min(c.at.mono+d, h.limit)))
		h.wall.Store(c.at.wall + int64(d))
	}
	h.mu.Unlock()
	h.locker.sched.replan(h, h.renewPoint())
}

func (h *hold) startRenew(ctx context.Context, lease time.Duration) *call {
	return h.tenure.node.start(ctx, renewScript, h.key, h.tenure.owner, lease.Milliseconds())
}

// renewed takes the answer to a renewal that was sent at at into account.
func (h *hold) renewed(at instant, val any, err error) error {
	left, ok := val.(int64)
	switch {
	case err != nil:
		return err
	case !ok:
		return errReply
	case left == 0:
		h.lose(errOtherOwner)
		return h.err()
	}
	return h.confirm(at, time.Duration(left)*time.Millisecond)
}

// lease is how much to ask for when d is wanted: no more than WithMaxHold leaves.
func (h *hold) lease(now, d time.Duration) time.Duration {
	if h.limit == forever {
		return d
	}
	return max(time.Millisecond, min(d, covering(min(d, h.limit-now))))
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	timer := h.tenure.node.timer(0)
	defer h.tenure.node.rest(timer)
	fail := &opError{act: "extend", key: h.key, outcome: ErrUnavailable}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if err := h.lapsed(); err != nil { // not err: it would ask Redis, without regard to ctx, what the renewal asks anyway
			return err
		}
		if fail.context = ctx.Err(); fail.context != nil {
			return fail
		}
		now := h.locker.clock.now().mono
		left := time.Duration(h.deadline.Load()) - now
		timer.Reset(min(left, patience(h.ttl)))
		lease := h.lease(now, ttl)
		h.longest.Store(max(h.longest.Load(), int64(lease)))
		c := h.startRenew(context.WithoutCancel(ctx), lease)
		select {
		case <-c.done:
		case <-timer.C:
			fail.cause = errSilence
			h.failed(errSilence)
			continue
		case <-ctx.Done():
			continue
		}
		err := h.renewed(c.at, c.val, c.err)
		if err == nil {
			h.locker.sched.replan(h, h.renewPoint())
			return nil
		}
		fail.cause = err
		if h.ended.Load() != nil {
			continue
		}
		h.failed(err)
		if permanent(err) {
			return fail
		}
		timer.Reset(min(left, pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

func (h *hold) failed(err error) {
	h.traces.emit(nodeError, Event{Key: h.key, Token: h.token, Err: err})
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
		lk.cancel(errReleased)
	}
	return last
}

func (h *hold) release(ctx context.Context) error {
	h.mu.Lock()
	first := h.done == nil
	if first {
		h.done = make(chan struct{})
	}
	done := h.done
	h.mu.Unlock()
	if !first {
		select {
		case <-done: // also where ctx has ended
			return h.result
		default:
		}
		select {
		case <-done:
			return h.result
		case <-ctx.Done():
			return &opError{act: "release", key: h.key, outcome: ErrUnavailable, context: ctx.Err()}
		}
	}

	h.locker.gate.join()
	defer h.locker.gate.leave()
	defer close(done)
	_ = h.lapsed() // a deadline that has passed makes it a loss, not a release
	if h.end(nil, errReleased) || errors.Is(h.err(), ErrClosed) {
		h.result = h.forget(ctx)
	} else {
		h.result = h.err()
		// The handler is through, so what Redis may still have of it can go. Where another owner has the
		// key this does nothing.
		h.forgetLater()
	}
	now := h.locker.clock.now().mono
	h.traces.emit(released, Event{Key: h.key, Token: h.token, Elapsed: now - h.began, Err: h.result})
	return h.result
}

func (h *hold) forget(ctx context.Context) error {
	outcome, cause := h.tenure.forget(ctx, min(h.ttl, releasePatience))
	if outcome == nil {
		return nil
	}
	fail := &opError{act: "release", key: h.key, outcome: outcome, cause: cause}
	if outcome == ErrUnavailable {
		fail.context = ctx.Err()
		h.failed(cause)
		h.forgetLater()
	}
	return fail
}

// forgetLater goes on releasing until the longest lease that Redis may have for this tenure is over.
func (h *hold) forgetLater() {
	h.locker.gate.join()
	go func() {
		defer h.locker.gate.leave()
		_, _ = h.tenure.forget(h.locker.gate.over, max(h.ttl, time.Duration(h.longest.Load())))
	}()
}
