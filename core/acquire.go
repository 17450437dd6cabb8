package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

var errLate = errors.New("the answer came after the lease had ended")

func (l *Locker) acquire(ctx context.Context, key string, opts []CallOption, try bool) (*Lock, error) {
	if ctx == nil {
		return nil, invalid("nil context")
	}
	cfg, err := configure(l, opts, key)
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
	return l.take(ctx, stored, cfg, wait, false)
}

// take is acquire with everything configured; wait is as in config. If a trial fails, its call goes on, or tells the hooks.
func (l *Locker) take(ctx context.Context, stored protocol.Key, cfg *config, wait time.Duration, trial bool) (*Lock, error) {
	began := l.env.Now().Mono
	tell := func(attempts int, waited bool, err error) error {
		if !trial {
			cfg.traces.emit(refusal, Event{Key: stored.Lock, Elapsed: l.env.Now().Mono - began, Waited: waited, Attempts: attempts, Err: err})
		}
		return err
	}
	for _, held := range Held(ctx) {
		if held.Key() != stored.Lock || !held.hold.locker.same(l) || held.hold.lapsed() != nil {
			continue
		}
		if cfg.reentryID != "" && held.hold.stake.cfg.reentryID == cfg.reentryID {
			continue // Redis lets this call in
		}
		if !cfg.reentrant || cfg.limit < held.hold.cfg.limit { // two sharing holders that want it alone would wait for each other
			return nil, tell(0, false, &opError{act: "acquire", key: stored.Lock, outcome: ErrSelfDeadlock})
		}
		if nested := held.nest(); nested != nil {
			return nested, nil
		}
	}
	if !l.env.Gate.Enter() {
		return nil, tell(0, false, &opError{act: "acquire", key: stored.Lock, outcome: ErrClosed})
	}
	defer l.env.Gate.Leave()

	a := &acquisition{locker: l, ctx: inTime(ctx), cfg: cfg, key: stored, began: began, schedule: schedule{wait: wait, from: began, pause: cfg.pollMin}}
	var lock *Lock
	var err error
	waited := func() bool { return a.known && wait != 0 }
	finished := false
	defer func() {
		switch {
		case finished:
		case lock != nil: // a hook panicked
			_ = lock.Release(ctx)
		default:
			a.quit()
			if err == nil { // a hook panicked
				err = &opError{act: "acquire", key: stored.Lock, outcome: ErrUnavailable}
			}
			_ = tell(a.attempts, waited(), err)
		}
	}()
	if lock, err = a.obtain(); err != nil {
		return nil, err
	}
	cfg.traces.emit(acquired, Event{
		Key: stored.Lock, Token: lock.Token(), Label: cfg.label,
		Elapsed: lock.hold.began - a.began, Waited: waited(), Attempts: a.attempts, Limit: lock.Limit(),
	})
	finished = true
	return lock, nil
}

// quit ends a call that did not get the lock, because of an error or a panic in a hook, wherever the call stood.
func (a *acquisition) quit() {
	if w := a.behind; w != nil {
		if !a.row.withdraw(w) || w.turn.err != nil {
			a.row = nil
		} else {
			a.stands(w.turn)
		}
	}
	if (a.row == nil || !a.row.giveUp(a)) && a.stake != nil {
		a.stake.undo()
	}
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	locker   *Locker
	ctx      context.Context
	cfg      *config
	key      protocol.Key
	stake    *stake
	row      *row    // the one that it stands in, at the front unless behind is set; or nil
	behind   *waiter // its place behind the front, while it waits there
	queued   bool    // it has waited behind the front
	hopeless bool    // Redis was silent when the call began, for as long as it would wait
	began    time.Duration
	attempts int
	look            // the latest
	outage   outage // the current run of failures
	schedule
}

func (a *acquisition) newStake() {
	block := 1
	// A call that had to queue reserves tokens for those that may queue behind it. Any other call reserves none, as
	// they would be wasted.
	if a.row != nil && a.queued && a.cfg.plain() && a.cfg.limit != protocol.NoLimit {
		block += a.row.reserve()
	}
	a.stake = a.locker.own(a.key, a.cfg.want(block))
	a.stake.key, a.stake.cfg, a.stake.block = a.key.Lock, a.cfg, int16(block)
}

func (a *acquisition) obtain() (*Lock, error) {
	// What one call has waited out, the next ones need not. One that finds nothing under way waits itself.
	_, limit := a.locker.store.Patience(a.cfg.ttl)
	one := a.locker.one // what one of several masters does not answer says nothing of the others
	a.hopeless = one != nil && a.wait >= 0 && one.Silence(a.key.Lock) >= max(a.wait, limit)
	if ts := &a.locker.turns; ts.on && a.cfg.reentryID == "" && !a.hopeless && (a.cfg.limit != protocol.NoLimit || a.cfg.plain()) {
		w, t := ts.enter(a)
		var lock *Lock
		var err error
		switch {
		case w != nil:
			lock, err = a.stand(w)
		case t.locked:
			lock, err = a.begin(t)
		}
		if lock != nil || err != nil {
			return lock, err
		}
	}
	if a.stake == nil {
		a.newStake()
	}
	return a.run()
}

// stand waits behind the other calls of this process until a is at the front. It returns the lock if that came with the
// turn, or an error, or neither, to go on to Redis.
func (a *acquisition) stand(w *waiter) (*Lock, error) {
	a.known, a.queued = true, true
	if len(a.cfg.traces) > 0 {
		e := Event{Key: a.key.Lock, Share: a.cfg.shareName()}
		if held, _ := w.found.report(); held != nil {
			e.Label, e.TimeLeft, e.Holders = held.Label, held.TimeLeft, held.Holders
		}
		a.cfg.traces.emit(waiting, e)
	}

	d := forever
	if a.wait > 0 {
		d = a.wait
	}
	switch a.locker.env.Await(a.ctx, d, w.ready) {
	case timing.Elapsed:
		if !a.row.withdraw(w) {
			// One look of its own, so that the error names the holder.
			a.held, a.err = w.found.report()
			a.row, a.behind, a.wait, a.from = nil, nil, 0, a.locker.env.Now().Mono
			return nil, nil
		}
		<-w.ready
	case timing.Ended:
		a.row.all.mu.Lock()
		known := a.row.front()
		a.row.all.mu.Unlock()
		if a.held, a.err = known.report(); a.held == nil && a.err == nil {
			a.held, a.err = w.found.report() // the best that is known
		}
		return nil, a.failure(a.ctx.Err())
	}
	t, found := w.turn, w.found
	*w = waiter{ready: w.ready}
	a.locker.turns.rest.Put(w)
	if t.err != nil {
		a.row, a.behind, a.held, a.err = nil, nil, nil, t.err
		if t.err == ErrClosed {
			return nil, a.stopped(closing)
		}
		return nil, a.failure(nil)
	}
	lock, err := a.begin(t)
	if lock == nil && err == nil {
		a.held, a.err = found.report()
	}
	return lock, err
}

// begin takes a turn. It returns the lock if that came with the turn, or an error, or neither, to go on to Redis.
func (a *acquisition) begin(t turn) (*Lock, error) {
	a.stands(t)
	if !t.locked {
		return nil, nil
	}
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	if now := a.locker.env.Now(); !t.lease.over(now) {
		return newLock(a, t.lease, now.Mono, now.Mono), nil
	}
	a.stake.undo()
	a.stake = nil
	return nil, nil
}

// stands notes that the call is at the front, or among readers, with what its turn brings.
func (a *acquisition) stands(t turn) {
	a.behind, a.row, a.stake = nil, t.row, t.stake
	if t.outage.on {
		a.outage = outage{true, max(t.outage.since, a.began)}
	}
}

// closing is what await returns if the Locker is shut down; the first of its channels is 1, and so on.
const closing = 0

// await waits for one of on, of which there are at most two, for at most d. It returns 1 or 2, closing, timing.Ended or
// timing.Elapsed.
func (a *acquisition) await(d time.Duration, on ...<-chan struct{}) int {
	var c [3]<-chan struct{}
	c[closing] = a.locker.env.Gate.Closing
	copy(c[1:], on)
	return a.locker.env.Await(a.ctx, d, c[:]...)
}

func (a *acquisition) run() (*Lock, error) {
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	if over := a.locker.background.over(a.key.Lock); over != nil {
		// A release of this process is on its way. This waits for it as long as the first look may take. After that Redis
		// counts as silent, as if the look had gone unanswered.
		switch why := a.await(a.allowed(), over); why {
		case 1:
		case timing.Elapsed:
			a.failed(redisconn.ErrSilence)
			if !a.more() {
				return nil, a.failure(nil)
			}
		default:
			return nil, a.stopped(why)
		}
	}
	for {
		a.attempts++
		call := new(redisconn.Call)
		a.pushed = a.stake.Try(a.ctx, call, a.wait != 0, a.allowed())
		why := 1
		if call.Done != nil { // nil if Try ran the command on this goroutine
			why = a.await(a.allowed(), call.Done)
		}
		switch why {
		case 1:
			call.Recycle()
			if lock, err := a.judge(call); lock != nil || err != nil {
				return lock, err
			}
		case timing.Elapsed:
			a.stake.Leave(call)
			a.failed(redisconn.ErrSilence)
		default:
			a.stake.Leave(call)
			return nil, a.stopped(why)
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
	a.last = false
	var wake, news <-chan struct{}
	if a.pushed && !a.split {
		wake = a.stake.Wake()
	}
	if a.known {
		var up bool
		if news, up = a.locker.store.Open(); up && !a.pushed && !a.deaf {
			return nil, nil // the inbox came up after the look
		}
	}
	pause, last := a.next(&a.look, a.cfg, a.locker.env.Now().Mono)
	why := a.await(pause, wake, news)
	a.last = last && why == timing.Elapsed
	switch why {
	case timing.Elapsed, 2:
		return nil, nil
	case 1:
	default:
		return nil, a.stopped(why)
	}
	token, at, d := a.stake.Accept(a.locker.env.Now())
	if token == 0 {
		return nil, nil
	}
	return a.granted(token, at, d)
}

// granted makes the lock of a grant, unless the call's context has ended.
func (a *acquisition) granted(token int64, at timing.Instant, d time.Duration) (*Lock, error) {
	a.stake.granted(token)
	if err := a.ctx.Err(); err != nil {
		a.held, a.err = nil, nil
		return nil, a.failure(err)
	}
	return a.keep(at, d)
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

// newLock makes the lock of a lease that a's tenure has from then on, as now shows.
func newLock(a *acquisition, e lease, from, now time.Duration) *Lock {
	l := a.locker
	t := a.stake
	h := t.newHold()
	*h = hold{
		locker: l, stake: t, token: t.token + int64(t.handed),
		cfg: a.cfg, began: now,
	}
	h.lease.limit = forever
	if a.cfg.maxHold > 0 && a.cfg.maxHold < forever-from {
		h.lease.limit = from + a.cfg.maxHold
	}
	h.lease.progress = newProgress(a.cfg, now)
	h.lease.set(e, a.cfg.ttl)
	if a.row != nil {
		h.row = a.row.has(h, e)
		a.row = nil
	}
	lock := h.handles.first(h)
	l.env.Gate.Join() // until the hold ends
	l.env.Held.Add(1)
	if !l.sched.add(h) {
		h.end(l.env.Now(), nil, h.loss(ErrClosed))
	}
	t.holds(h)
	return lock
}

// judge evaluates an answer. It returns the lock, an error to end with, or neither, to look again.
func (a *acquisition) judge(call *redisconn.Call) (*Lock, error) {
	v := a.stake.Read(call)
	for _, err := range v.Errs {
		a.cfg.traces.emit(nodeError, Event{Key: a.key.Lock, Attempts: a.attempts, Err: err})
	}
	switch {
	case v.Held:
		a.outage.on = false
		a.look = look{
			held: newHeldError(a.key.Lock, v.Left, v.Label, v.Holders), place: v.Place,
			foreign: v.Foreign, split: v.Split, deaf: v.Deaf, pushed: a.pushed && !v.Deaf,
		}
		if a.row != nil {
			a.row.answered(a)
		}
		if !a.known {
			a.known, a.from = true, a.locker.env.Now().Mono
			if a.wait != 0 {
				a.cfg.traces.emit(waiting, Event{Key: a.key.Lock, Share: a.cfg.shareName(), Label: v.Label, TimeLeft: a.held.TimeLeft, Holders: a.held.Holders})
			}
		}
		return nil, nil
	case v.Token > 0:
		if lock, err := a.granted(v.Token, call.At, a.cfg.ttl); lock != nil || err != nil {
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
	first := err
	if err == redisconn.ErrSilence && a.outage.on {
		first = a.err
	}
	a.look = look{err: first, pushed: a.pushed}
	if !a.outage.on {
		a.outage = outage{true, a.locker.env.Now().Mono}
	}
	if a.row != nil {
		a.row.answered(a)
	}
	if several, ok := err.(interface{ OfMasters() bool }); ok && several.OfMasters() {
		return // the hook was called for each master
	}
	a.cfg.traces.emit(nodeError, Event{Key: a.key.Lock, Attempts: a.attempts, Err: err})
}

func (a *acquisition) stopped(why int) error {
	if why == closing {
		return &opError{act: "acquire", key: a.key.Lock, outcome: ErrClosed}
	}
	return a.failure(a.ctx.Err())
}

// failure returns the error of an acquisition that ends now. ctxErr is the context's error if that is the reason, else
// nil.
func (a *acquisition) failure(ctxErr error) error {
	if a.held == nil {
		return &opError{act: "acquire", key: a.key.Lock, outcome: ErrUnavailable, cause: a.err, context: ctxErr}
	}
	held := *a.held // a copy: other calls may return the same one
	held.Here, _ = a.locker.turns.here(held.Key)
	held.Limit = a.cfg.places()
	for _, lock := range Held(a.ctx) {
		held.Holding = append(held.Holding, lock.Key())
	}
	if ctxErr == nil {
		return &held
	}
	return &opError{act: "acquire", key: a.key.Lock, outcome: &held, context: ctxErr}
}

// allowed returns how long the next look may take. WithWait bounds the wait for other holders, and the store's
// Patience bounds the wait for Redis. So the first look may take longer than a short WithWait. So may the last look,
// which begins when that wait ends, if Redis has been answering.
func (a *acquisition) allowed() time.Duration {
	_, d := a.locker.store.Patience(a.cfg.ttl)
	if a.wait < 0 || a.held != nil {
		return d
	}
	if a.hopeless {
		return glance
	}
	return min(d, a.from+max(a.wait, d)-a.locker.env.Now().Mono)
}

// glance is how long a call waits for a Redis that has been silent for as long as the call would wait for it. A Redis that
// is there again answers in that time, or else with its answer ends the silence for the calls that follow.
const glance = 10 * time.Millisecond

// more reports whether to look again.
func (a *acquisition) more() bool {
	now := a.locker.env.Now().Mono
	if a.outage.on && now-a.outage.since >= a.cfg.ttl {
		return false
	}
	switch {
	case a.wait < 0:
		return true
	case a.held != nil:
		return !a.last && now-a.from < a.wait
	case a.hopeless:
		return false
	case a.wait > 0 && now-a.from < a.wait:
		return true
	}
	// Redis has failed, and the time to wait for other holders is over, or there was none.
	patience, _ := a.locker.store.Patience(a.cfg.ttl)
	return a.attempts < redisconn.Tries && now-a.from < patience
}
