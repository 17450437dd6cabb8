package holdfast

import (
	"context"
	"errors"
	"slices"
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
	forever = timing.Forever
	// reportAfter leases a hold is reported as long.
	reportAfter = 20
	// releasePatience bounds a Release whose context never ends, with the TTL.
	releasePatience = 5 * time.Second
)

// hold is the state behind a Lock. The scheduler reaches holds and, once they have to be renewed, not their Locks, so that
// a forgotten Lock can be collected.
//
// The lock is held while ended is nil and the clock is before the deadline. Deadlines rest on when a command
// was sent, never on when its answer came: Redis began to count the lease later than that, so it ends later
// there too, and a rival cannot have the lock before.
type hold struct {
	locker *Locker
	stake  *stake
	queue  *queue // of which it is at the front, or nil
	token  int64
	cfg    *config
	limit  time.Duration // WithMaxHold; forever without
	began  time.Duration

	deadline atomic.Int64 // monotonic, since the clock's base
	wall     atomic.Int64 // the same moment as the wall clock saw it coming; Unix, ns
	leased   atomic.Int64 // how long the lease behind the deadline is from its beginning
	longest  atomic.Int64 // the longest lease that Extend asked for
	ended    atomic.Pointer[ending]
	mu       sync.Mutex // orders what ends a hold and what prolongs it; never held during I/O or in hooks

	// Guarded by mu.
	lock      *Lock              // until the first renewal: a weak pointer costs more than all else that makes a hold
	handle    weak.Pointer[Lock] // from then on
	contexts  []bound            // that end with the hold
	asking    chan struct{}      // full while Redis is asked, one question at a time; nil before the first
	uses      int32              // handles that are not released
	nested    int32              // handles besides the first, ever
	releasing bool               // Release was called
	through   bool               // and has its result
	whole     atomic.Bool        // not guarded: some lease was as long as the TTL, as that of a grant is not at first
	done      chan struct{}      // closed then, if somebody waits for it
	result    error

	// Guarded by the scheduler's mutex.
	index   int32         // in its heap, -1 outside
	asked   bool          // a renewal is under way
	next    time.Duration // when to look at this hold
	renewAt time.Duration
	report  time.Duration // next LongHold, since began
}

// ending is why a hold is over.
type ending struct{ err error }

var releasedEnding = &ending{errReleased}

// Why a lock was lost. errUnconfirmed: the wall clock ran past the lease while the monotonic one did not, and Redis did not
// say that the lock is still ours.
var (
	errExpired     = errors.New("the lease ran out before a renewal succeeded")
	errOtherOwner  = errors.New("redis no longer has it as ours")
	errMaxHold     = errors.New("held for as long as WithMaxHold allows")
	errAbandoned   = errors.New("the Lock became unreachable without a Release")
	errUnconfirmed = errors.New("the machine's clock jumped past the lease and redis did not confirm the lock")
)

func (h *hold) key() string { return h.stake.key }

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
	if h.ended.Load() == nil && h.locker.env.Now().Mono < time.Duration(h.deadline.Load()) {
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
		now := h.locker.env.Now()
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
	if h.ended.Load() == nil && h.locker.env.Now().Mono >= time.Duration(h.deadline.Load()) {
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
	h.end(h.locker.env.Now(), func() bool { return h.locker.env.Now().Mono >= time.Duration(h.deadline.Load()) }, h.loss(reason))
}

func (h *hold) loss(reason error) error {
	return &opError{act: "hold", key: h.key(), outcome: ErrLost, cause: reason}
}

// lose ends the hold at once.
func (h *hold) lose(reason error) { h.end(h.locker.env.Now(), nil, h.loss(reason)) }

// end moves the hold to its end now, once, if cond (which may be nil) still holds. It reports whether this call
// did it. A concurrent confirm is either before, and cond sees it, or after, and finds the hold ended.
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
		// First, so that nobody who sees the end sends another renewal. What is left of the lease stays, unless others
		// have the lock: something that has not noticed may still run under it.
		left := max(0, min(time.Duration(h.deadline.Load())-now.Mono, time.Duration(h.wall.Load()-now.Wall)))
		left += timing.Margin(time.Duration(h.leased.Load()))
		if errors.Is(err, errOtherOwner) {
			left = 0
		}
		if h.stake.sharing == nil {
			h.stake.End(left)
		}
	}
	h.ended.Store(e)
	h.deadline.Store(min(h.deadline.Load(), int64(now.Mono)))
	contexts := h.contexts
	h.contexts = nil
	h.mu.Unlock()

	defer h.locker.env.Gate.Leave()
	for _, c := range contexts {
		c.cancel(err)
	}
	if h.stake.sharing != nil {
		h.stake.sharing.leaves(h, err)
	}
	h.locker.sched.remove(h)
	if err != errReleased {
		if h.queue != nil {
			h.queue.leave(h)
		}
		h.cfg.traces.emit(lost, Event{Key: h.key(), Token: h.token, Elapsed: now.Mono - h.began, Err: err})
	}
	return true
}

// abandoned tells whether nobody can reach the Lock any more, which is not known before the second time.
func (h *hold) abandoned() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lock != nil {
		h.lock, h.handle = nil, weak.Make(h.lock)
	}
	return h.handle.Value() == nil
}

func (h *hold) failed(err error) {
	h.cfg.traces.emit(nodeError, Event{Key: h.key(), Token: h.token, Err: err})
}

// drop counts lk out, once, and reports whether no handle is left. The contexts of a nested handle end with it;
// those of the outermost are above those that go on.
func (h *hold) drop(lk *Lock) (last bool) {
	h.mu.Lock()
	if !lk.released.Swap(true) {
		h.uses--
	}
	last = h.uses == 0
	var own []bound
	if lk.number > 0 {
		h.contexts = slices.DeleteFunc(h.contexts, func(b bound) bool {
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

// release ends the hold. The hooks are told of reason beside the result, where a [Locker.Lead] has one.
func (h *hold) release(ctx context.Context, reason error) error {
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

	h.locker.env.Gate.Join()
	defer h.locker.env.Gate.Leave()
	told := false // Released is told of elsewhere
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
		result, told = h.finish(ctx, reason)
		finished = true
	}()
	if !told && len(h.cfg.traces) > 0 {
		now := h.locker.env.Now().Mono
		h.cfg.traces.emit(released, Event{Key: h.key(), Token: h.token, Elapsed: now - h.began, Err: both(result, reason)})
	}
	return result
}

// finish ends the hold and frees the lock, or hands it over, or sends its release, which then tells the outcome.
func (h *hold) finish(ctx context.Context, reason error) (err error, tells bool) {
	now := h.locker.env.Now()
	if now.Mono >= time.Duration(h.deadline.Load()) {
		h.expire() // it is a loss, not a release
	}
	e := h.getLease()
	ended := h.end(now, nil, errReleased)
	if s := h.stake.sharing; s != nil && !s.part(h) {
		if err := h.err(); err != errReleased && !errors.Is(err, ErrClosed) {
			return err, false
		}
		return nil, false
	}
	if ended {
		if h.queue != nil && h.queue.handOver(h, e, now) {
			return nil, false
		}
		if h.cfg.background {
			h.locker.passing.begin(h.key())
		}
		if h.queue != nil {
			h.queue.leave(h) // the next may stand in line in Redis before the lock is free there: that is as good
		}
		if h.cfg.background {
			h.pass(reason)
			return nil, true
		}
		return h.forget(ctx), false
	}
	if errors.Is(h.err(), ErrClosed) {
		return h.forget(ctx), false
	}
	// The handler is through, so what Redis may still have of it can go. Where another owner has the key this
	// does nothing.
	h.forgetLater()
	return h.err(), false
}

// patience is for how long a release whose context does not end is waited for.
func (h *hold) patience() time.Duration { return min(h.cfg.ttl, releasePatience) }

func (h *hold) forget(ctx context.Context) error {
	outcome, cause := h.stake.Release(ctx, h.patience())
	if outcome == single.Unknown {
		h.forgetLater()
	}
	return h.judge(outcome, cause, ctx.Err())
}

// judge is what became of a release.
func (h *hold) judge(outcome single.Outcome, cause, ctxErr error) error {
	switch outcome {
	case single.Released:
		return nil
	case single.Lost:
		return &opError{act: "release", key: h.key(), outcome: ErrLost}
	}
	h.failed(cause)
	return &opError{act: "release", key: h.key(), outcome: ErrUnavailable, cause: public(cause), context: ctxErr}
}

// forgetLater goes on releasing until the longest lease that Redis may have for this tenure is over.
func (h *hold) forgetLater() {
	env := h.locker.env
	env.Go(func() { _, _ = h.stake.Release(env.Gate.Over, max(h.cfg.ttl, time.Duration(h.longest.Load()))) })
}

// ask verifies the hold with Redis after the wall clock went past the lease and the monotonic clock did not:
// a suspended machine, whose rivals went on, or somebody who set the clock, and nothing happened. What Redis
// says is left replaces both deadlines: after a suspension the monotonic one comes too late.
func (h *hold) ask() {
	h.mu.Lock()
	if h.asking == nil {
		h.asking = make(chan struct{}, 1)
	}
	h.mu.Unlock()
	h.asking <- struct{}{} // not a mutex, which would keep the clock of a test's bubble from going on
	defer func() { <-h.asking }()
	now := h.locker.env.Now()
	if h.ended.Load() != nil || now.Wall < h.wall.Load() {
		return // another caller has asked meanwhile
	}
	var lease time.Duration
	// A majority's renewal would bring back a lock that ran out meanwhile, though another holder may have had it since.
	if !h.cfg.noRenew && !h.locker.store.Several() {
		lease = h.lease(now.Mono, h.cfg.ttl)
	}
	c := h.stake.Renew(context.Background(), lease, nil)
	if c == nil || h.locker.env.Await(context.Background(), c.Done, h.locker.store.Patience(h.cfg.ttl)) != timing.Told {
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
	if h.ended.Load() == nil && h.locker.env.Now().Mono < time.Duration(h.deadline.Load()) {
		d := timing.Millis(left)
		d -= timing.Margin(d)
		h.deadline.Store(int64(min(c.At.Mono+d, h.limit)))
		h.wall.Store(c.At.Wall + int64(d))
	}
	h.mu.Unlock()
	h.locker.sched.replan(h, h.renewPoint())
}

// renewed takes the answer to a renewal that was sent at at into account.
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
	if h.locker.store.Several() && h.locker.env.Now().Wall >= h.wall.Load() {
		// The machine was suspended meanwhile. The renewal brought back a lock that had run out, and another holder may have
		// had it.
		h.lose(errUnconfirmed)
		return h.err()
	}
	return h.confirm(at, timing.Millis(left))
}

// lease is how much to ask for when d is wanted: no more than WithMaxHold leaves.
func (h *hold) lease(now, d time.Duration) time.Duration {
	if h.limit == forever {
		return d
	}
	return max(time.Millisecond, min(d, timing.Covering(min(d, h.limit-now))))
}

// reserve notes that the lease may become as long as d, unless the hold has ended: its lease is another's then. It is
// either before the end, and the lock is not handed over within the process, or it sees the end.
func (h *hold) reserve(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended.Load() != nil {
		return false
	}
	h.longest.Store(max(h.longest.Load(), int64(d)))
	return true
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	ctx = inTime(ctx)
	env, several := h.locker.env, h.locker.store.Several()
	fail := &opError{act: "extend", key: h.key(), outcome: ErrUnavailable}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		lapsed := h.lapsed // not err: it would ask Redis, without regard to ctx, what the renewal asks anyway
		if several {
			lapsed = h.err // see ask
		}
		if err := lapsed(); err == errReleased {
			return &opError{act: "extend", key: h.key(), outcome: ErrLost, cause: err}
		} else if err != nil {
			return err
		}
		if fail.context = ctx.Err(); fail.context != nil {
			return fail
		}
		now := env.Now().Mono
		left := time.Duration(h.deadline.Load()) - now
		lease := h.lease(now, ttl)
		if !h.reserve(lease) {
			continue
		}
		c := h.stake.Renew(context.WithoutCancel(ctx), lease, nil)
		if c == nil {
			continue
		}
		err := redisconn.ErrSilence
		switch env.Await(ctx, c.Done, min(left, h.locker.store.Patience(h.cfg.ttl))) {
		case timing.Ended:
			continue
		case timing.Told:
			if err = h.renewed(c.At, c.Val, c.Err); err == nil {
				h.locker.sched.replan(h, h.renewPoint())
				return nil
			}
		}
		fail.cause = public(err)
		if h.ended.Load() != nil {
			continue
		}
		h.failed(err)
		if several || redisconn.Permanent(err) { // most masters have been asked, and for long enough
			return fail
		}
		if err != redisconn.ErrSilence {
			env.Await(ctx, nil, min(left, pause))
		}
	}
}
