package core

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

func (l *Locker) acquire(ctx context.Context, key string, opts []CallOption, try bool) (*Lock, error) {
	if ctx == nil {
		return nil, invalid("nil context")
	}
	cfg, err := l.configure(opts)
	if err == nil && try && cfg.waitSet {
		err = invalid("TryAcquire does not wait, WithWait contradicts it")
	}
	if err == nil && cfg.claims {
		err = invalid("WithMinGap and WithTickWindow are options of Claim")
	}
	if err != nil {
		return nil, err
	}
	random, colon := newOwner(cfg.label)
	names, err := nameOwned(l.cfg.prefix+key, string(random[:]), colon, cfg.label)
	if key == "" {
		err = invalid("empty key")
	}
	if err != nil {
		return nil, err
	}
	for _, held := range Held(ctx) {
		if held.Key() != names.Lock || !held.hold.locker.redis.same(l.redis) || held.hold.lapsed() != nil {
			continue
		}
		if cfg.reentryID != "" && held.hold.tenure.data().cfg.reentryID == cfg.reentryID {
			continue // Redis lets it in
		}
		if !cfg.reentrant {
			return nil, &opError{act: "acquire", key: names.Lock, outcome: ErrSelfDeadlock}
		}
		if nested := held.nest(ctx); nested != nil {
			return nested, nil
		}
	}
	if !l.gate.Enter() {
		return nil, &opError{act: "acquire", key: names.Lock, outcome: ErrClosed}
	}
	defer l.gate.Leave()

	a := &acquisition{locker: l, ctx: ctx, cfg: cfg, names: names, wait: cfg.wait, began: l.clock.Now().Mono}
	a.from = a.began
	if try {
		a.wait = 0
	}
	var lock *Lock
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
		Key: names.Lock, Token: lock.Token(), Label: cfg.label,
		Elapsed: lock.hold.began - a.began, Attempts: a.attempts,
	})
	through = true
	return lock, nil
}

// quit is for a call that ends without the lock: by an error, or by a panic in a hook, wherever it stood.
func (a *acquisition) quit() {
	if w := a.behind; w != nil {
		if !a.queue.withdraw(w) || w.turn.err != nil {
			a.queue = nil
		} else {
			a.come(w.turn)
		}
	}
	if (a.queue == nil || !a.queue.giveUp(a)) && a.tenure != nil {
		a.tenure.undo()
	}
}

// triesOfOne is how often a call that does not wait sends its command where Redis fails to serve it: the
// first may have met a connection that died while it was idle.
const triesOfOne = 3

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	locker   *Locker
	ctx      context.Context
	cfg      *config
	names    protocol.Names
	wait     time.Duration // as in config
	tenure   ownership
	queue    *queue  // of which it is at the front, or nil
	behind   *queued // it waits there still
	queued   bool    // it had to
	began    time.Duration
	from     time.Duration // when the wait for another holder began, with the first answer that told of one; or the look at its end
	attempts int

	// What the latest look told: one of the two, or neither before the first.
	held *HeldError
	err  error

	place   int  // in line, as held was told
	foreign bool // the holder is somebody who will tell nobody of the release
	deaf    bool // the server cannot tell it of a grant, for now
	split   bool // several ask at once, so that nobody gets it

	outage  time.Duration // when the failures in a row began
	failing bool
	told    bool // of a holder
	pushed  bool // the latest look asked to be told through the inbox
	last    bool // the look under way is the last one
	pause   time.Duration

	first redisconn.Call // for the first tenure
}

func (a *acquisition) newTenure() {
	block := 1
	if a.queue != nil && a.queued && a.cfg.plain() { // others may queue behind it as it did: without that, tokens are not wasted
		block += a.locker.queues.bound
	}
	a.tenure = a.locker.redis.own(a.names, a.cfg, block)
	a.names.Gone = "" // rule 1: the next one has another id
	if t, ok := a.tenure.(*tenure); ok && a.attempts == 0 {
		t.room = &a.first
	}
}

func (a *acquisition) obtain() (*Lock, error) {
	if qs := &a.locker.queues; qs.on && a.cfg.reentryID == "" {
		if w := qs.enter(a); w != nil {
			if lock, err := a.await(w); lock != nil || err != nil {
				return lock, err
			}
		}
	}
	if a.tenure == nil {
		a.newTenure()
	}
	a.pause = a.cfg.pollMin
	return a.run()
}

// why a wait ended.
type why int

const (
	answered why = iota
	contextEnded
	closed
	elapsed
	granted  // the inbox has a grant
	reopened // the inbox
)

// listen waits for done, wake and news (any may be nil) for at most d.
func (a *acquisition) listen(done, wake, news <-chan struct{}, d time.Duration) why {
	timer := a.locker.timers.Get(d)
	defer a.locker.timers.Rest(timer)
	select {
	case <-done:
		return answered
	case <-wake:
		return granted
	case <-news:
		return reopened
	case <-a.ctx.Done():
		return contextEnded
	case <-a.locker.gate.Closing:
		return closed
	case <-timer.C:
		return elapsed
	}
}

func (a *acquisition) run() (*Lock, error) {
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	for {
		a.attempts++
		call, pushed := a.tenure.acquire(a.ctx, a.wait != 0)
		a.pushed = pushed
		reason := a.listen(call.Done, nil, nil, a.allowed())
		switch reason {
		case answered:
			call.Heard()
			if lock, err := a.judge(call); lock != nil || err != nil {
				return lock, err
			}
		case elapsed:
			a.tenure.leave(call)
			a.failed(redisconn.ErrSilence)
		default:
			a.tenure.leave(call)
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

// idle waits until it is time for the next look, or for a grant that makes it needless.
func (a *acquisition) idle() (*Lock, error) {
	d, last := a.next()
	var wake, news <-chan struct{}
	if a.pushed && !a.split {
		wake = a.tenure.waker()
	}
	if a.told {
		news = a.locker.redis.open()
		if !a.pushed && !a.deaf && a.locker.redis.isUp() {
			return nil, nil // since the look
		}
	}
	switch reason := a.listen(nil, wake, news, d); reason {
	case elapsed:
		a.last = last
		return nil, nil
	case granted:
		if a.cfg.reentryID != "" {
			return nil, nil // it takes a look for the others to be let in
		}
		at, ok := a.tenure.accept(a.locker.clock.Now())
		if !ok {
			return nil, nil
		}
		if err := a.ctx.Err(); err != nil {
			a.held, a.err = nil, nil
			return nil, a.failure(err)
		}
		return a.keep(at, a.tenure.data().firstLease())
	case reopened:
		return nil, nil
	default:
		return nil, a.stopped(reason)
	}
}

// keep makes the lock of a lease of d that is ours from at on, unless it is over for us already. It is judged by
// both clocks: the machine may have been suspended while the news was on its way.
func (a *acquisition) keep(at timing.Instant, d time.Duration) (*Lock, error) {
	e := leaseFrom(at, d)
	if a.cfg.acks > 0 && !e.over(a.locker.clock.Now()) {
		var err error
		if at, d, err = a.confirm(); err != nil {
			return nil, err
		}
		e = leaseFrom(at, d)
	}
	if e.over(a.locker.clock.Now()) {
		return nil, nil
	}
	a.tenure.data().began = at.Mono
	return newLock(a, e, at.Mono), nil
}

// judge looks at an answer: the lock, an error to end with, or neither to look again.
func (a *acquisition) judge(call *redisconn.Call) (*Lock, error) {
	v := a.tenure.read(call)
	for _, err := range v.errs {
		a.cfg.traces.emit(nodeError, Event{Key: a.names.Lock, Attempts: a.attempts, Err: err})
	}
	switch {
	case v.held != nil:
		a.held, a.err, a.failing = v.held, nil, false
		a.place, a.foreign, a.split, a.deaf = v.place, v.foreign, v.split, v.deaf
		a.pushed = a.pushed && !v.deaf
		if a.queue != nil {
			a.queue.tell(a)
		}
		if !a.told {
			a.told, a.from = true, a.locker.clock.Now().Mono
			if a.wait != 0 {
				a.cfg.traces.emit(waiting, Event{Key: a.names.Lock, Label: v.held.Label, TimeLeft: v.held.TimeLeft})
			}
		}
		return nil, nil
	case v.token > 0:
		a.tenure.data().hold(v.token)
		if err := a.ctx.Err(); err != nil {
			a.held, a.err = nil, nil
			return nil, a.failure(err)
		}
		if lock, err := a.keep(call.At, a.cfg.ttl); lock != nil || err != nil {
			return lock, err
		}
		// Held by then for Redis, perhaps, but not for us. Rule 1: it is undone, so its id is used up.
		a.tenure.undo()
		a.newTenure()
		a.failed(errLate)
		return nil, nil
	}
	a.failed(v.err)
	if permanent(v.err) {
		return nil, a.failure(nil)
	}
	return nil, nil
}

// failed notes that a look told nothing. Silence is a poor reason: what failed before it says more.
func (a *acquisition) failed(err error) {
	if err != redisconn.ErrSilence || !a.failing {
		a.err = err
	}
	a.held, a.split, a.deaf = nil, false, false
	if !a.failing {
		a.failing, a.outage = true, a.locker.clock.Now().Mono
	}
	if a.queue != nil {
		a.queue.tell(a)
	}
	if several, ok := err.(*quorumError); ok && several.ofMasters() {
		return // told of each
	}
	a.cfg.traces.emit(nodeError, Event{Key: a.names.Lock, Attempts: a.attempts, Err: err})
}

func (a *acquisition) stopped(reason why) error {
	if reason == closed {
		return &opError{act: "acquire", key: a.names.Lock, outcome: ErrClosed}
	}
	return a.failure(a.ctx.Err())
}

// failure is the error of an acquisition that ends now, because of ctxErr where that is not nil.
func (a *acquisition) failure(ctxErr error) error {
	if a.held == nil {
		return &opError{act: "acquire", key: a.names.Lock, outcome: ErrUnavailable, cause: a.err, context: ctxErr}
	}
	if ctxErr == nil {
		return a.held
	}
	return &opError{act: "acquire", key: a.names.Lock, outcome: a.held, context: ctxErr}
}
