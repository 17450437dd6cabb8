package holdfast

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	// reportAfter is the number of leases after which a hold is reported as long.
	reportAfter = 20
	// releasePatience bounds, together with the TTL, a Release whose context never ends.
	releasePatience = 5 * time.Second
)

// hold is the state behind a Lock: held while ended is nil and the clock is before the lease's deadline. The scheduler
// keeps holds reachable. From its first renewal on, a hold does not keep its Lock reachable, so that a forgotten Lock can be
// collected.
type hold struct {
	locker *Locker
	stake  *stake
	row    *row // the one that it is at the front of, or nil
	token  int64
	cfg    *config
	began  time.Duration
	lease  running
	ended  atomic.Pointer[ending]
	due    due // the scheduler's

	mu      sync.Mutex // guards what follows; never held during I/O or in hooks
	handles handles
	asking  chan struct{} // full while one caller asks Redis; nil before the first
	release releasing
}

// releasing is what has become of a call of Release.
type releasing struct {
	begun  bool
	ended  bool
	result error
	done   chan struct{} // closed with ended; nil unless somebody waits for it
}

// ending is the reason why a hold ended.
type ending struct{ err error }

var releasedEnding = &ending{errReleased}

// Why a lock was lost. errUnconfirmed: the wall clock ran past the lease, the monotonic clock did not, and Redis did
// not confirm that the lock is still ours.
var (
	errExpired     = errors.New("the lease ran out before a renewal succeeded")
	errOtherOwner  = errors.New("no longer ours in Redis")
	errMaxHold     = errors.New("held for as long as WithMaxHold allows")
	errAbandoned   = errors.New("the Lock became unreachable without a Release")
	errUnconfirmed = errors.New("the machine's clock jumped past the lease and Redis did not confirm the lock")
)

func (h *hold) key() string { return h.stake.key }

// trust sets the deadline from a command that was sent at at and that left d of the lease. It never moves the deadline
// back, because no script shortens a lease.
func (h *hold) trust(at timing.Instant, d time.Duration) {
	if e := leaseFrom(at, d); min(e.end.Mono, h.lease.limit) > h.lease.leaseEnds() {
		h.lease.set(e, h.cfg.ttl)
	}
}

// confirm is trust for a hold in use. An answer that comes after the hold has ended, or after the deadline of its lease,
// revives nothing.
func (h *hold) confirm(at timing.Instant, d time.Duration) error {
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.env.Now().Mono < h.lease.leaseEnds() {
		h.trust(at, d)
	}
	h.mu.Unlock()
	return h.lapsed()
}

// err returns nil while the lock is held. It asks Redis only if the wall clock alone has passed the lease: see ask.
func (h *hold) err() error {
	for {
		if e := h.ended.Load(); e != nil {
			return e.err
		}
		now := h.locker.env.Now()
		if h.lease.expired(now) {
			h.expire()
			continue
		}
		if now.Wall < h.lease.wall.Load() {
			return nil
		}
		h.ask()
	}
}

// lapsed is err by the monotonic clock alone. It never asks Redis.
func (h *hold) lapsed() error {
	if h.ended.Load() == nil && h.lease.expired(h.locker.env.Now()) {
		h.expire()
	}
	if e := h.ended.Load(); e != nil {
		return e.err
	}
	return nil
}

// expire ends the hold if its deadline has passed.
func (h *hold) expire() {
	lost := h.loss(nil)
	h.end(h.locker.env.Now(), func() bool {
		lost.cause = h.lease.lapse(h.locker.env.Now())
		return lost.cause != nil
	}, lost)
}

// loss returns the error of a hold that did not last until its release. The hook Ended is told of it.
func (h *hold) loss(reason error) *opError {
	return &opError{act: "hold", key: h.key(), outcome: ErrLost, cause: reason, logged: h.cfg.traces.logs()}
}

// lose ends the hold at once.
func (h *hold) lose(reason error) { h.end(h.locker.env.Now(), nil, h.loss(reason)) }

// end ends the hold as of now, once, if cond still holds or is nil. It reports whether this call did it. A concurrent
// confirm or report of progress comes either before, and cond sees its effect, or after, and finds the hold ended.
func (h *hold) end(now timing.Instant, cond func() bool, err error) bool {
	e := releasedEnding
	if err != errReleased {
		e = &ending{err}
	}
	h.mu.Lock()
	if h.ended.Load() != nil || cond != nil && !cond() {
		h.mu.Unlock()
		return false
	}
	if err != errReleased {
		// First, so that nobody who sees the end sends another renewal. What is left of the lease stays, because
		// something that has not noticed the end may still run under it. Nothing is left if another owner holds the
		// lock.
		left := max(0, h.lease.left(now)) + timing.Margin(time.Duration(h.lease.full.Load()))
		if errors.Is(err, errOtherOwner) {
			left = 0
		}
		h.stake.End(left)
	}
	h.lease.cut(now) // before others can see the end: a report of progress may have moved the deadline since cond
	h.ended.Store(e)
	contexts := h.handles.contexts
	h.handles.contexts = nil
	h.mu.Unlock()

	h.locker.env.Held.Add(-1)
	defer h.locker.env.Gate.Leave()
	if err != errReleased {
		defer h.stake.endOthers() // when this hold is done with, as a hook of each may panic
	}
	for _, c := range contexts {
		c.cancel(err)
	}
	h.locker.sched.remove(h)
	if err != errReleased {
		h.leave()
		h.traceEnd(now.Mono, err)
	}
	return true
}

// traceEnd calls the hook of the end, which is one of two: of a loss when end finds it, of a release when its outcome is
// known.
func (h *hold) traceEnd(at time.Duration, err error) {
	h.cfg.traces.emit(ended, Event{Key: h.key(), Token: h.token, Elapsed: at - h.began, Lost: errors.Is(err, ErrLost), Err: err})
}

// abandoned reports whether nobody can reach the Lock any more. The first call cannot find that out, only later ones.
func (h *hold) abandoned() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if hs := &h.handles; hs.lock != nil {
		hs.lock, hs.handle = nil, weak.Make(hs.lock)
	}
	return h.handles.handle.Value() == nil
}

func (h *hold) failed(err error) {
	h.cfg.traces.emit(nodeError, Event{Key: h.key(), Token: h.token, Err: err})
}

// free ends the hold and releases the lock, once.
func (h *hold) free(ctx context.Context) (result error) {
	r := &h.release
	h.mu.Lock()
	first, ended, known := !r.begun, r.ended, r.result
	r.begun = true
	if !first && r.done == nil {
		r.done = make(chan struct{})
	}
	done := r.done
	h.mu.Unlock()
	switch {
	case first:
	case ended:
		return known
	default:
		select {
		case <-done:
			return r.result
		case <-ctx.Done():
			return &opError{act: "release", key: h.key(), outcome: ErrUnavailable, context: ctx.Err()}
		}
	}

	h.locker.env.Gate.Join()
	defer h.locker.env.Gate.Leave()
	now, traced := h.locker.env.Now(), true
	defer func() {
		if !traced {
			h.traceEnd(now.Mono, result)
		}
	}()
	func() {
		returned := false
		defer func() {
			if !returned { // a hook panicked
				result = &opError{act: "release", key: h.key(), outcome: ErrUnavailable}
				traced = h.ended.Load() != releasedEnding
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			r.ended, r.result = true, result
			if r.done != nil {
				close(r.done)
			}
		}()
		result, traced = h.finish(ctx, now)
		returned = true
	}()
	return result
}

// finish ends the hold and then frees the lock, hands it over, or sends its release. It reports whether the hook of the end
// was called, or will be.
func (h *hold) finish(ctx context.Context, now timing.Instant) (err error, traced bool) {
	if h.lease.expired(now) {
		h.expire() // a loss, not a release
	}
	e := h.lease.get()
	released := h.end(now, nil, errReleased)
	switch {
	case !released && errors.Is(h.err(), ErrClosed):
		_ = h.forget(ctx) // Shutdown left the key to whatever still ran under it, and that has returned
		return h.err(), true
	case !released:
		// The handler has returned, so what Redis may still keep of this tenure can go. If another owner has the key, this
		// does nothing.
		h.stake.Pass(0, h.lasting(), nil)
		return h.err(), true
	case h.row != nil && h.row.handOver(h, e, now):
		return nil, false
	case h.cfg.background:
		h.locker.background.begin(h.key())
		h.leave()
		h.freeInBackground(now.Mono)
		return nil, true
	}
	h.leave()
	return h.forget(ctx), false
}

// leave takes the hold from the front of its row. The next call may join the line in Redis before the lock is free there,
// which is as good.
func (h *hold) leave() {
	if h.row != nil {
		h.row.leave(h)
	}
}

// patience returns how long a release waits if its context does not end.
func (h *hold) patience() time.Duration { return min(h.cfg.ttl, releasePatience) }

func (h *hold) forget(ctx context.Context) error {
	outcome, cause := h.stake.Release(ctx, h.patience(), h.lasting())
	return h.judge(outcome, cause, ctx.Err())
}

// judge returns the error of a release with that outcome.
func (h *hold) judge(outcome single.Outcome, cause, ctxErr error) error {
	switch outcome {
	case single.Released:
		return nil
	case single.Lost:
		return h.loss(errOtherOwner)
	}
	h.failed(cause)
	return &opError{act: "release", key: h.key(), outcome: ErrUnavailable, cause: cause, context: ctxErr}
}

// lasting returns how long a release goes on in the background: the longest lease that Redis may have for this tenure.
func (h *hold) lasting() time.Duration { return max(h.cfg.ttl, time.Duration(h.lease.longest.Load())) }

// ask verifies the hold with Redis when the wall clock has passed the lease and the monotonic clock has not. Either the
// machine was suspended, and its rivals went on, or somebody set the clock, and nothing happened. What Redis says is
// left of the lease replaces both deadlines: after a suspension the monotonic one is too late.
func (h *hold) ask() {
	h.mu.Lock()
	if h.asking == nil {
		h.asking = make(chan struct{}, 1)
	}
	h.mu.Unlock()
	h.asking <- struct{}{} // not a mutex, which would stop the clock of a test's bubble
	defer func() { <-h.asking }()
	now := h.locker.env.Now()
	if h.ended.Load() != nil || now.Wall < h.lease.wall.Load() {
		return // another caller has asked in the meantime
	}
	c := h.stake.Renew(context.Background(), 0, nil)
	if c == nil {
		h.lose(errUnconfirmed)
		return
	}
	defer c.Leave()
	if _, limit := h.locker.store.Patience(h.cfg.ttl); h.locker.env.Await(context.Background(), limit, c.Done) != 0 {
		h.lose(errUnconfirmed)
		return
	}
	left, ok := protocol.ReadLeft(c.Val)
	switch {
	case c.Err != nil || !ok:
		h.lose(errUnconfirmed)
		return
	case left == 0:
		h.lose(errOtherOwner)
		return
	case left < 0: // somebody made the key persistent
		left = h.cfg.ttl.Milliseconds()
	}
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.env.Now().Mono < h.lease.leaseEnds() {
		d := timing.Millis(left)
		d -= timing.Margin(d)
		h.lease.deadline.Store(int64(min(c.At.Mono+d, h.lease.limit)))
		h.lease.wall.Store(c.At.Wall + int64(d))
	}
	h.mu.Unlock()
	h.locker.sched.replan(h, h.renewPoint())
}

// renewed evaluates the answer to a renewal that was sent at at.
func (h *hold) renewed(at timing.Instant, val any, err error) error {
	left, ok := protocol.ReadLeft(val)
	switch {
	case err != nil:
		return err
	case !ok:
		return protocol.ErrReply
	case left == 0:
		h.lose(errOtherOwner)
		return h.err()
	}
	return h.confirm(at, timing.Millis(left))
}

// reserve notes that the lease may become as long as d, and reports whether it did. It does nothing once the hold has
// ended, because the lease may be another hold's by then. A reserve before the end keeps the lock from being handed
// over within the process; a reserve after the end sees it.
func (h *hold) reserve(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended.Load() != nil {
		return false
	}
	h.lease.longest.Store(max(h.lease.longest.Load(), int64(d)))
	return true
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	ctx = inTime(ctx)
	env := h.locker.env
	_, limit := h.locker.store.Patience(h.cfg.ttl)
	fail := &opError{act: "extend", key: h.key(), outcome: ErrUnavailable}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		// Not err: it would ask Redis, without regard to ctx, what the renewal asks anyway.
		if err := h.lapsed(); err == errReleased {
			return &opError{act: "extend", key: h.key(), outcome: ErrLost, cause: err}
		} else if err != nil {
			return err
		}
		if fail.context = ctx.Err(); fail.context != nil {
			return fail
		}
		now := env.Now().Mono
		left := h.lease.leaseEnds() - now
		lease := h.lease.bounded(now, ttl)
		if !h.reserve(lease) {
			continue
		}
		c := h.stake.Renew(context.WithoutCancel(ctx), lease, nil)
		if c == nil {
			continue
		}
		why, err := env.Await(ctx, min(left, limit), c.Done), redisconn.ErrSilence
		c.Leave()
		if why == timing.Ended {
			continue
		}
		if why == 0 {
			if err = h.renewed(c.At, c.Val, c.Err); err == nil {
				h.locker.sched.replan(h, h.renewPoint())
				return nil
			}
		}
		fail.cause = err
		if h.ended.Load() != nil {
			continue
		}
		h.failed(err)
		if redisconn.Permanent(err) {
			return fail
		}
		if err != redisconn.ErrSilence {
			env.Await(ctx, min(left, pause))
		}
	}
}
