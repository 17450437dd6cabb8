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
	// reportAfter is the number of leases after which a hold is reported as long.
	reportAfter = 20
	// releasePatience bounds, together with the TTL, a Release whose context never ends.
	releasePatience = 5 * time.Second
)

// hold is the state behind a Lock. The scheduler keeps holds reachable. From its first renewal on, a hold does not keep
// its Lock reachable, so that a forgotten Lock can be collected.
//
// The lock is held while ended is nil and the clock is before the deadline. A deadline counts from when a command was
// sent, never from when its answer came. Redis starts the lease later than that, so the lease also ends later there,
// and no rival can hold the lock before the deadline.
type hold struct {
	locker *Locker
	stake  *stake
	queue  *queue // the one that it is at the front of, or nil
	token  int64
	cfg    *config
	limit  time.Duration // the end that WithMaxHold sets, monotonic; forever without
	began  time.Duration

	deadline atomic.Int64 // monotonic, since the clock's base
	wall     atomic.Int64 // the same moment by the wall clock, as expected when it was set; Unix, ns
	leased   atomic.Int64 // the full length of the lease behind the deadline
	longest  atomic.Int64 // the longest lease that Extend asked for
	ended    atomic.Pointer[ending]
	mu       sync.Mutex // orders ending and prolonging a hold; never held during I/O or in hooks

	// Guarded by mu.
	lock      *Lock              // until the first renewal: a weak pointer costs more than everything else in a hold
	handle    weak.Pointer[Lock] // from then on
	contexts  []bound            // which end with the hold
	asking    chan struct{}      // full while one caller asks Redis; nil before the first
	uses      int32              // handles that are not released yet
	nested    int32              // how many handles were made besides the first
	releasing bool               // Release was called
	through   bool               // and has its result
	whole     atomic.Bool        // not guarded: some lease was as long as the TTL, which the first lease of a grant may not be
	done      chan struct{}      // closed when through is set; nil unless somebody waits for it
	result    error

	// Guarded by the scheduler's mutex.
	index   int32         // in the scheduler's heap; -1 outside
	asked   bool          // a renewal is under way
	next    time.Duration // when the scheduler looks at this hold again
	renewAt time.Duration
	report  time.Duration // when LongHold is due next, counted from began
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
	if e := leaseFrom(at, d); int64(min(e.end.Mono, h.limit)) > h.deadline.Load() {
		h.setLease(e)
	}
}

func (h *hold) setLease(e lease) {
	h.deadline.Store(int64(min(e.end.Mono, h.limit)))
	h.wall.Store(e.end.Wall) // even if that is earlier: the clock was set back
	h.leased.Store(int64(e.full))
	if e.full >= h.cfg.ttl {
		h.whole.Store(true)
	}
}

// getLease returns the lease that the next holder of the tenure can rely on.
func (h *hold) getLease() lease {
	end := timing.Instant{Mono: time.Duration(h.deadline.Load()), Wall: h.wall.Load()}
	return lease{end, time.Duration(h.leased.Load())}
}

// confirm is trust for a hold in use. An answer that comes after the hold has ended, or after its deadline, revives
// nothing.
func (h *hold) confirm(at timing.Instant, d time.Duration) error {
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.env.Now().Mono < time.Duration(h.deadline.Load()) {
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

// lapsed is err by the monotonic clock alone. It never asks Redis.
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

// end ends the hold as of now, once, if cond still holds or is nil. It reports whether this call did it. A concurrent
// confirm comes either before, and cond sees its effect, or after, and finds the hold ended.
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

// abandoned reports whether nobody can reach the Lock any more. The first call cannot find that out, only later ones.
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

// drop counts lk out, once, and reports whether no handle is left. The contexts of a nested handle end with it. Those
// of the outermost handle are parents of contexts that go on, so they stay.
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

// release ends the hold. The hooks receive reason, which a [Locker.Lead] may give, together with the result.
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
	told := false // the Released hook is called elsewhere
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

// finish ends the hold and then frees the lock, hands it over, or sends its release. If it only sends the release, it
// returns tells: the release calls the Released hook when it has its answer.
func (h *hold) finish(ctx context.Context, reason error) (err error, tells bool) {
	now := h.locker.env.Now()
	if now.Mono >= time.Duration(h.deadline.Load()) {
		h.expire() // a loss, not a release
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
			h.queue.leave(h) // the next call may join the line in Redis before the lock is free there, which is as good
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
	// The handler has returned, so what Redis may still keep of this tenure can go. If another owner has the key, this
	// does nothing.
	h.forgetLater()
	return h.err(), false
}

// patience returns how long a release waits if its context does not end.
func (h *hold) patience() time.Duration { return min(h.cfg.ttl, releasePatience) }

func (h *hold) forget(ctx context.Context) error {
	outcome, cause := h.stake.Release(ctx, h.patience())
	if outcome == single.Unknown {
		h.forgetLater()
	}
	return h.judge(outcome, cause, ctx.Err())
}

// judge returns the error of a release with that outcome.
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

// forgetLater goes on releasing in the background until the longest lease that Redis may have for this tenure has
// ended.
func (h *hold) forgetLater() {
	env := h.locker.env
	env.Go(func() { _, _ = h.stake.Release(env.Gate.Over, max(h.cfg.ttl, time.Duration(h.longest.Load()))) })
}

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
	if h.ended.Load() != nil || now.Wall < h.wall.Load() {
		return // another caller has asked in the meantime
	}
	var lease time.Duration
	// With several masters a renewal would bring back a lock that has expired, though another holder may have had it
	// since.
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
	if h.locker.store.Several() && h.locker.env.Now().Wall >= h.wall.Load() {
		// The machine was suspended meanwhile. The renewal brought back a lock that had expired, and another holder may
		// have had it in between.
		h.lose(errUnconfirmed)
		return h.err()
	}
	return h.confirm(at, timing.Millis(left))
}

// lease returns how long a lease to ask for when d is wanted: no longer than WithMaxHold leaves.
func (h *hold) lease(now, d time.Duration) time.Duration {
	if h.limit == forever {
		return d
	}
	return max(time.Millisecond, min(d, timing.Covering(min(d, h.limit-now))))
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
