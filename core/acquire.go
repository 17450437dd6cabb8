package holdfast

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/quorum"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// lookAgain is the longest pause between two looks of a waiter in line. A look also shows that the waiter is alive.
// Without one for protocol.EntryLife the waiter counts as dead, so two looks in a row can fail.
const lookAgain = 2 * time.Second

var errLate = errors.New("the answer came after the lease had ended")

func (l *Locker) acquire(ctx context.Context, key string, opts []CallOption, try bool) (*Lock, error) {
	if ctx == nil {
		return nil, invalid("nil context")
	}
	cfg, err := configure(l, opts)
	if err == nil && try && cfg.waitSet {
		err = invalid("TryAcquire does not wait, WithWait contradicts it")
	}
	if err != nil {
		return nil, err
	}
	stored, err := l.stored(key)
	if err != nil {
		return nil, err
	}
	wait := cfg.wait
	if try {
		wait = 0
	}
	return l.take(ctx, stored, cfg, wait)
}

// take is acquire with everything configured; wait is as in config.
func (l *Locker) take(ctx context.Context, stored protocol.Key, cfg *config, wait time.Duration) (*Lock, error) {
	for _, held := range Held(ctx) {
		if held.Key() != stored.Lock || !held.hold.locker.store.same(l.store) || held.hold.lapsed() != nil {
			continue
		}
		if cfg.reentryID != "" && held.hold.stake.cfg.reentryID == cfg.reentryID {
			continue // Redis lets this call in
		}
		if !cfg.reentrant || cfg.limit < held.hold.cfg.limit { // two sharing holders that want it alone would wait for each other
			return nil, &opError{act: "acquire", key: stored.Lock, outcome: ErrSelfDeadlock}
		}
		if nested := held.nest(); nested != nil {
			return nested, nil
		}
	}
	if !l.env.Gate.Enter() {
		return nil, &opError{act: "acquire", key: stored.Lock, outcome: ErrClosed}
	}
	defer l.env.Gate.Leave()

	a := &acquisition{locker: l, ctx: inTime(ctx), cfg: cfg, key: stored, wait: wait, began: l.env.Now().Mono}
	a.from = a.began
	var lock *Lock
	var err error
	through := false
	defer func() {
		switch {
		case through:
		case lock != nil: // a hook panicked
			_ = lock.Release(ctx)
		default:
			a.quit()
		}
	}()
	if lock, err = a.obtain(); err != nil {
		return nil, err
	}
	cfg.traces.emit(acquired, Event{
		Key: stored.Lock, Token: lock.Token(), Label: cfg.label,
		Elapsed: lock.hold.began - a.began, Attempts: a.attempts, Limit: lock.Limit(),
	})
	through = true
	return lock, nil
}

// quit ends a call that did not get the lock, because of an error or a panic in a hook, wherever the call stood.
func (a *acquisition) quit() {
	if w := a.behind; w != nil {
		if !a.queue.withdraw(w) || w.turn.err != nil {
			a.queue = nil
		} else {
			a.comes(w.turn)
		}
	}
	if (a.queue == nil || !a.queue.giveUp(a)) && a.stake != nil {
		a.drop()
	}
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	locker   *Locker
	ctx      context.Context
	cfg      *config
	key      protocol.Key
	wait     time.Duration // as in config
	stake    *stake
	queue    *queue  // the one that it is in, at the front unless behind is set; or nil
	behind   *queued // its place behind the front, while it waits there
	queued   bool    // it has waited behind the front
	began    time.Duration
	from     time.Duration // when wait began: with the call, the first answer that named a holder, or the look after the queue
	attempts int

	// What the latest look found: one of the two is set, or neither before the first look.
	held *HeldError
	err  error

	place   int  // in line, as of held
	foreign bool // the holder will notify nobody of its release
	deaf    bool // the server cannot notify this call of a grant, for now
	split   bool // several clients ask at once, so that none gets the lock

	outage  time.Duration // when the current run of failures began
	failing bool
	told    bool // somebody is known to hold the lock
	pushed  bool // a grant will arrive in the inbox: the latest look asked for that
	last    bool // the look under way is the last one
	pause   time.Duration
	hurried int // looks in a row at the end of a lease that runs down, which did not wait for pause
}

func (a *acquisition) newStake() {
	block := 1
	// A call that had to queue reserves tokens for those that may queue behind it. Any other call reserves none, as
	// they would be wasted.
	if a.queue != nil && a.queued && a.cfg.plain() && a.cfg.limit != protocol.NoLimit {
		block += a.queue.reserve()
	}
	a.stake = a.locker.store.own(a.key, single.Want{TTL: a.cfg.ttl, Label: a.cfg.label, ReentryID: a.cfg.reentryID, Block: block, Limit: a.cfg.limit})
	a.stake.key, a.stake.cfg, a.stake.block = a.key.Lock, a.cfg, int16(block)
}

func (a *acquisition) obtain() (*Lock, error) {
	if qs := &a.locker.queues; qs.on && a.cfg.reentryID == "" && (a.cfg.limit != protocol.NoLimit || a.cfg.plain()) {
		w, t := qs.enter(a)
		var lock *Lock
		var err error
		switch {
		case w != nil:
			lock, err = a.await(w)
		case t.held:
			lock, err = a.come(t)
		}
		if lock != nil || err != nil {
			return lock, err
		}
	}
	if a.stake == nil {
		a.newStake()
	}
	a.pause = a.cfg.pollMin
	return a.run()
}

// why is the reason that a wait ended.
type why int

const (
	answered why = iota
	contextEnded
	closed
	elapsed
	reopened // the inbox is up
)

// listen waits for done, wake or news, each of which may be nil, for at most d.
func (a *acquisition) listen(done <-chan struct{}, wake <-chan protocol.Grant, news <-chan struct{}, d time.Duration) (why, protocol.Grant) {
	var g protocol.Grant
	timer := a.locker.env.Timers.Get(d)
	defer a.locker.env.Timers.Rest(timer)
	select {
	case <-done:
		return answered, g
	case g = <-wake:
		return answered, g
	case <-news:
		return reopened, g
	case <-a.ctx.Done():
		return contextEnded, g
	case <-a.locker.env.Gate.Closing:
		return closed, g
	case <-timer.C:
		return elapsed, g
	}
}

func (a *acquisition) run() (*Lock, error) {
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	switch reason := a.follow(); reason {
	case answered:
	case elapsed:
		a.failed(redisconn.ErrSilence)
		if !a.more() {
			return nil, a.failure(nil)
		}
	default:
		return nil, a.stopped(reason)
	}
	for {
		a.attempts++
		call := new(redisconn.Call)
		a.pushed = a.stake.Try(a.ctx, call, a.wait != 0, a.allowed())
		reason := answered
		if call.Done != nil { // nil if Try ran the command on this goroutine
			reason, _ = a.listen(call.Done, nil, nil, a.allowed())
		}
		switch reason {
		case answered:
			call.Heard()
			if lock, err := a.judge(call); lock != nil || err != nil {
				return lock, err
			}
		case elapsed:
			a.stake.Leave(call)
			a.failed(redisconn.ErrSilence)
		default:
			a.stake.Leave(call)
			return nil, a.stopped(reason)
		}
		if !a.more() {
			return nil, a.failure(nil)
		}
		if lock, err := a.idle(); lock != nil || err != nil {
			return lock, err
		}
	}
}

// idle waits until the next look is due, or until a grant makes it unnecessary.
func (a *acquisition) idle() (*Lock, error) {
	d, last := a.next()
	var wake <-chan protocol.Grant
	var news <-chan struct{}
	if a.pushed && !a.split {
		wake = a.stake.Wake()
	}
	if a.told {
		news = a.locker.store.Open()
		if !a.pushed && !a.deaf && a.locker.store.Up() {
			return nil, nil // the inbox came up after the look
		}
	}
	switch reason, g := a.listen(nil, wake, news, d); reason {
	case elapsed:
		a.last = last
		return nil, nil
	case answered:
		if a.cfg.reentryID != "" {
			return nil, nil // a look, unlike a grant, lets the others with this id in: see entry.lua
		}
		token, at, d := a.stake.Accept(g, a.locker.env.Now())
		if token == 0 {
			return nil, nil
		}
		a.stake.granted(token)
		if err := a.ctx.Err(); err != nil {
			a.held, a.err = nil, nil
			return nil, a.failure(err)
		}
		return a.keep(at, d)
	case reopened:
		return nil, nil
	default:
		return nil, a.stopped(reason)
	}
}

// keep makes the lock from a lease of length d that counts from at, unless that lease has already ended for us. Both
// clocks decide this, because the machine may have been suspended while the answer was on its way.
func (a *acquisition) keep(at timing.Instant, d time.Duration) (*Lock, error) {
	e, now := leaseFrom(at, d), a.locker.env.Now()
	if a.cfg.acks > 0 && !e.over(now) {
		var err error
		if at, d, err = a.confirm(); err != nil {
			return nil, err
		}
		e, now = leaseFrom(at, d), a.locker.env.Now()
	}
	if e.over(now) {
		return nil, nil
	}
	a.stake.began = at.Mono
	return newLock(a, e, at.Mono, now.Mono), nil
}

// judge evaluates an answer. It returns the lock, an error to end with, or neither, to look again.
func (a *acquisition) judge(call *redisconn.Call) (*Lock, error) {
	v := a.stake.Read(call)
	for _, err := range v.Errs {
		a.cfg.traces.emit(nodeError, Event{Key: a.key.Lock, Attempts: a.attempts, Err: err})
	}
	switch {
	case v.Held:
		a.held, a.err, a.failing = newHeldError(a.key.Lock, v.Left, v.Label, v.Holders), nil, false
		a.place, a.foreign, a.split, a.deaf = v.Place, v.Foreign, v.Split, v.Deaf
		a.pushed = a.pushed && !v.Deaf
		if a.queue != nil {
			a.queue.tell(a)
		}
		if !a.told {
			a.told, a.from = true, a.locker.env.Now().Mono
			if a.wait != 0 {
				a.cfg.traces.emit(waiting, Event{Key: a.key.Lock, Label: v.Label, TimeLeft: a.held.TimeLeft, Holders: a.held.Holders})
			}
		}
		return nil, nil
	case v.Token > 0:
		a.stake.granted(v.Token)
		if err := a.ctx.Err(); err != nil {
			a.held, a.err = nil, nil
			return nil, a.failure(err)
		}
		if lock, err := a.keep(call.At, a.cfg.ttl); lock != nil || err != nil {
			return lock, err
		}
		// Redis may still hold the lock for us, but our lease has ended. Once the tenure is undone, rule 1 forbids
		// using its owner id again: see single.Tenure.
		a.stake.undo()
		a.newStake()
		a.failed(errLate)
		return nil, nil
	}
	a.failed(v.Err)
	if redisconn.Permanent(v.Err) {
		return nil, a.failure(nil)
	}
	return nil, nil
}

// failed notes that a look failed. ErrSilence explains little, so it does not replace an earlier error of the same
// outage.
func (a *acquisition) failed(err error) {
	if err != redisconn.ErrSilence || !a.failing {
		a.err = err
	}
	a.held, a.split, a.deaf = nil, false, false
	if !a.failing {
		a.failing, a.outage = true, a.locker.env.Now().Mono
	}
	if a.queue != nil {
		a.queue.tell(a)
	}
	if several, ok := err.(*quorum.Failure); ok && several.OfMasters() {
		return // the hook was called for each master
	}
	a.cfg.traces.emit(nodeError, Event{Key: a.key.Lock, Attempts: a.attempts, Err: public(err)})
}

func (a *acquisition) stopped(reason why) error {
	if reason == closed {
		return &opError{act: "acquire", key: a.key.Lock, outcome: ErrClosed}
	}
	return a.failure(a.ctx.Err())
}

// failure returns the error of an acquisition that ends now. ctxErr is the context's error if that is the reason, else
// nil.
func (a *acquisition) failure(ctxErr error) error {
	if a.held == nil {
		return &opError{act: "acquire", key: a.key.Lock, outcome: ErrUnavailable, cause: public(a.err), context: ctxErr}
	}
	held := *a.held // a copy: other calls may return the same one
	held.Here, _ = a.locker.queues.here(held.Key)
	for _, lock := range Held(a.ctx) {
		held.Holding = append(held.Holding, lock.Key())
	}
	if ctxErr == nil {
		return &held
	}
	return &opError{act: "acquire", key: a.key.Lock, outcome: &held, context: ctxErr}
}

// allowed returns how long the next look may take. WithWait bounds the wait for other holders, and the store's
// Allowance bounds the wait for Redis. So the first look may take longer than a short WithWait. So may the last look,
// which begins when that wait ends, if Redis has been answering.
func (a *acquisition) allowed() time.Duration {
	d := a.locker.store.Allowance(a.cfg.ttl)
	if a.wait < 0 || a.held != nil {
		return d
	}
	return min(d, a.from+max(a.wait, d)-a.locker.env.Now().Mono)
}

// more reports whether to look again.
func (a *acquisition) more() bool {
	now := a.locker.env.Now().Mono
	if a.failing && now-a.outage >= a.cfg.ttl {
		return false
	}
	switch {
	case a.wait < 0:
		return true
	case a.held != nil:
		return !a.last && now-a.from < a.wait
	case a.wait > 0 && now-a.from < a.wait:
		return true
	}
	// Redis has failed, and the time to wait for other holders is over, or there was none.
	return a.attempts < redisconn.Tries && now-a.from < a.locker.store.Patience(a.cfg.ttl)
}

// next returns how long to pause before the next look, and whether that look is the last one because the wait then
// ends.
//
// If the inbox will report a grant, a look is for what the inbox cannot report: that a lease has ended because its
// holder died. The first waiter in line looks when the lease ends, and each of the others a little later. In the long
// run no waiter looks more than once a second: if the leases of a holder are always that short, a waiter looks early at
// only three of their ends. Nobody renews a lease of which less than half is left, unless the holder's leases are
// shorter than this call's.
//
// Otherwise waiting is polling. The pauses are random, so that waiters that began together drift apart. They grow as in
// "decorrelated jitter" (AWS Architecture Blog, "Exponential Backoff And Jitter"). If a lease ends sooner, the look
// comes when it ends.
func (a *acquisition) next() (d time.Duration, last bool) {
	switch {
	case a.split: // the random delay of the RedLock description
		d = time.Millisecond + rand.N(min(a.pause, lookAgain))
		a.pause = min(2*a.pause, a.cfg.pollMax)
	case a.pushed && a.held != nil && !(a.foreign && a.place == 1):
		d = lookAgain - rand.N(lookAgain/5)
		if left := a.held.TimeLeft; left > 0 {
			end := left + rand.N(a.cfg.pollMin) + time.Duration(a.place-1)*a.cfg.pollMin
			if left >= min(a.pause, a.cfg.ttl/2) {
				a.hurried = 0
			} else {
				a.hurried++
			}
			if a.hurried == 0 || a.hurried > 3 { // three, because the first may come a millisecond early
				end = max(a.pause, end)
			}
			d = min(d, end)
		}
		a.pause = min(2*a.pause, 2*lookAgain/3)
	default:
		a.pause = min(a.cfg.pollMax, a.cfg.pollMin+rand.N(2*a.pause+1))
		d = min(a.pause, lookAgain)
		if a.held != nil && a.held.TimeLeft > 0 {
			d = min(d, a.held.TimeLeft+rand.N(a.cfg.pollMin))
		}
	}
	if a.wait > 0 {
		if left := a.from + a.wait - a.locker.env.Now().Mono; left > 0 && left <= d {
			return left, true
		}
	}
	return d, false
}
