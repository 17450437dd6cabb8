package core

import (
	"context"
	"math/rand/v2"
	"time"
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
	names, err := nameKeys(l.cfg.prefix + key)
	if key == "" {
		err = invalid("empty key")
	}
	if err != nil {
		return nil, err
	}
	for _, held := range Held(ctx) {
		if held.Key() != names.lock || !held.hold.locker.sameRedis(l) || held.hold.lapsed() != nil {
			continue
		}
		if !cfg.reentrant {
			return nil, &opError{act: "acquire", key: names.lock, outcome: ErrSelfDeadlock}
		}
		if nested := held.nest(ctx); nested != nil {
			return nested, nil
		}
	}
	if !l.gate.enter() {
		return nil, &opError{act: "acquire", key: names.lock, outcome: ErrClosed}
	}
	defer l.gate.leave()

	a := &acquisition{locker: l, ctx: ctx, cfg: cfg, names: names, wait: cfg.wait, began: l.clock.now().mono}
	a.from = a.began
	if try {
		a.wait = 0
	}
	a.newTenure()
	lock, err := a.run()
	if err != nil {
		a.tenure.undo()
		return nil, err
	}
	cfg.traces.emit(acquired, Event{
		Key: names.lock, Token: lock.Token(), Label: cfg.label,
		Elapsed: lock.hold.began - a.began, Attempts: a.attempts,
	})
	return lock, nil
}

// triesOfOne is how often a call that does not wait sends its command where Redis fails to serve it: the
// first may have met a connection that died while it was idle.
const triesOfOne = 3

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	locker   *Locker
	ctx      context.Context
	cfg      *config
	names    names
	wait     time.Duration // as in config
	tenure   *tenure
	began    time.Duration
	from     time.Duration // when the wait for another holder began: with the first answer that told of one
	attempts int

	// What the latest look told: one of the two, or neither before the first.
	held *HeldError
	err  error

	outage  time.Duration // when the failures in a row began
	failing bool
	told    bool // of a holder
	last    bool // the look under way is the last one
	pause   time.Duration
}

func (a *acquisition) newTenure() {
	a.tenure = newTenure(a.locker.node, a.names, a.cfg.label, a.cfg.ttl)
	a.pause = a.cfg.pollMin
}

// why a wait ended.
type why int

const (
	answered why = iota
	contextEnded
	closed
	elapsed
)

// listen waits for done (which may be nil) for at most d.
func (a *acquisition) listen(done <-chan struct{}, d time.Duration) why {
	timer := a.locker.node.timer(d)
	defer a.locker.node.rest(timer)
	select {
	case <-done:
		return answered
	case <-a.ctx.Done():
		return contextEnded
	case <-a.locker.gate.closing:
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
		call := a.tenure.acquire(a.ctx)
		reason := a.listen(call.done, a.allowed())
		switch reason {
		case answered:
			if lock, err := a.judge(call); lock != nil || err != nil {
				return lock, err
			}
		case elapsed:
			a.tenure.leave(call)
			a.failed(errSilence)
		default:
			a.tenure.leave(call)
			return nil, a.stopped(reason)
		}
		if !a.more() {
			return nil, a.failure(nil)
		}
		if reason := a.listen(nil, a.next()); reason != elapsed {
			return nil, a.stopped(reason)
		}
	}
}

// judge looks at an answer: the lock, an error to end with, or neither to look again.
func (a *acquisition) judge(call *call) (*Lock, error) {
	v := a.tenure.read(call)
	switch {
	case v.held != nil:
		a.held, a.err, a.failing = v.held, nil, false
		if !a.told {
			a.told, a.from = true, a.locker.clock.now().mono
			if a.wait != 0 {
				a.cfg.traces.emit(waiting, Event{Key: a.names.lock, Label: v.held.Label, TimeLeft: v.held.TimeLeft})
			}
		}
		return nil, nil
	case v.granted:
		if err := a.ctx.Err(); err != nil {
			a.held, a.err = nil, nil
			return nil, a.failure(err)
		}
		// By both clocks: the machine may have been suspended while the answer was on its way.
		now, lease := a.locker.clock.now(), a.cfg.ttl-margin(a.cfg.ttl)
		if now.mono < call.at.mono+lease && now.wall < call.at.wall+int64(lease) {
			return newLock(a, call.at), nil
		}
		// Held by then for Redis, perhaps, but not for us. Rule 1: it is undone, so its id is used up.
		a.tenure.undo()
		a.newTenure()
		a.failed(errLate)
		return nil, nil
	}
	a.failed(v.err)
	if v.err == errExhausted || permanent(v.err) {
		return nil, a.failure(nil)
	}
	return nil, nil
}

// failed notes that a look told nothing. Silence is a poor reason: what failed before it says more.
func (a *acquisition) failed(err error) {
	if err != errSilence || !a.failing {
		a.err = err
	}
	a.held = nil
	if !a.failing {
		a.failing, a.outage = true, a.locker.clock.now().mono
	}
	a.cfg.traces.emit(nodeError, Event{Key: a.names.lock, Attempts: a.attempts, Err: err})
}

// allowed is how long the next look may take. WithWait bounds the waiting for others and patience that for
// Redis: the first look may take longer than a short wait, and so may the last, which is at the end of it,
// if Redis has been answering.
func (a *acquisition) allowed() time.Duration {
	d := patience(a.cfg.ttl)
	if a.wait < 0 || a.held != nil {
		return d
	}
	return min(d, a.from+max(a.wait, d)-a.locker.clock.now().mono)
}

// more tells whether to look again.
func (a *acquisition) more() bool {
	now := a.locker.clock.now().mono
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
	// Redis failed to serve, and the time to wait for others is over, or there was none.
	return a.attempts < triesOfOne && now-a.began < patience(a.cfg.ttl)
}

// next is how long to pause before the next look. The times are random so that waiters that began together
// drift apart, and grow like those of "decorrelated jitter" (AWS Architecture Blog, "Exponential Backoff And
// Jitter"). A lease that ends sooner is looked at when it ends; the last look is at the end of the wait.
func (a *acquisition) next() time.Duration {
	a.pause = min(a.cfg.pollMax, a.cfg.pollMin+rand.N(2*a.pause+1))
	d := a.pause
	if a.held != nil && a.held.TimeLeft > 0 {
		d = min(d, a.held.TimeLeft+rand.N(a.cfg.pollMin))
	}
	if a.wait > 0 {
		if left := a.from + a.wait - a.locker.clock.now().mono; left > 0 && left <= d {
			a.last, d = true, left
		}
	}
	return d
}

func (a *acquisition) stopped(reason why) error {
	if reason == closed {
		return &opError{act: "acquire", key: a.names.lock, outcome: ErrClosed}
	}
	return a.failure(a.ctx.Err())
}

// failure is the error of an acquisition that ends now, because of ctxErr where that is not nil.
func (a *acquisition) failure(ctxErr error) error {
	if a.held == nil {
		return &opError{act: "acquire", key: a.names.lock, outcome: ErrUnavailable, cause: a.err, context: ctxErr}
	}
	if ctxErr == nil {
		return a.held
	}
	return &opError{act: "acquire", key: a.names.lock, outcome: a.held, context: ctxErr}
}
