package redlock

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// An owner holds, or may come to hold, a lock on several masters. It has a tenure on each, all under one owner id. It
// holds the lock if most masters have it, for the lease less a margin for drift and less the time since before the
// first command was sent. A client without a majority releases the key on every master.
//
// Each look is an attempt with an owner id of its own, so that nothing late of one attempt can touch the next. The
// three rules of single.Tenure hold for each master. The fourth is about masters that have forgotten a lock:
//
//  4. A renewal may bring the lock back on a master, so it counts like an acquire. None is sent once a release has been sent
//     or the hold is lost, nor after the lease. If a renewal before was not answered, the release leaves a tombstone.
type owner struct {
	q     *masters
	names protocol.Names
	want  single.Want

	waiter  string // its id in the lines, made with the first attempt that waits
	blamed  uint64 // the masters whose failure was reported
	highest int64  // the largest token that any master reported

	look *attempt // the latest attempt
	won  *attempt // the attempt whose tenures it has
	wake chan struct{}

	mu        sync.Mutex    // guards what follows
	took      time.Duration // how long the latest attempt took
	nudges    uint64        // the masters that reported the lock free since the last look
	timed     bool          // a timer will wake it
	lined     bool          // it stands in line on some master
	longest   time.Duration // the longest lease that was asked for
	forgetful bool          // no renewal may be sent any more: rule 4
	ends      int64         // when the lease ends at the earliest, by the wall clock; Unix, ns
	releasing *release
	asking    []*redisconn.Call // that callers wait for
}

// Own returns a new owner. Each of its attempts has an owner id of its own.
func (q *masters) Own(key protocol.Key, want single.Want) store.Owner {
	return &owner{q: q, names: key.Names(), want: want, wake: make(chan struct{}, 1)}
}

// ID is the value of the lock, once the owner has it.
func (o *owner) ID() string { return o.won.id }

// Try begins an attempt. c is answered when the attempt ends.
func (o *owner) Try(ctx context.Context, c *redisconn.Call, waits bool, _ time.Duration) (pushed bool) {
	a := newAttempt(o)
	o.look = a
	o.mu.Lock()
	o.nudges = 0
	select {
	case <-o.wake: // an earlier message
	default:
	}
	o.mu.Unlock()
	pushed = waits && o.q.expect(o)
	if pushed {
		o.lined = true
		// The lock is kept for this waiter for about as long as it takes to be notified and to ask.
		reserve := min(max(3*o.took+10*time.Millisecond, 20*time.Millisecond), o.q.patience(o.want.TTL))
		a.place = protocol.VotePlace(o.waiter, reserve, o.q.inbox)
	}
	c.At, c.Done = o.q.env.Now(), make(chan struct{}, 1)
	o.q.env.Go(func() {
		v := a.run(ctx)
		if !a.state.CompareAndSwap(attemptRuns, attemptDecided) {
			a.undo("")
		} else if v.Token == 0 {
			quiet := "-"
			if v.Split {
				quiet = "" // none of these clients holds the lock, and not all of them may know
			}
			a.undo(quiet)
		}
		c.Answer(v, nil)
	})
	return pushed
}

// Leave stops listening to an attempt, which then undoes itself.
func (o *owner) Leave(*redisconn.Call) {
	if !o.look.state.CompareAndSwap(attemptRuns, attemptLeft) {
		o.look.undo("") // to undo a failed attempt again does no harm
	}
}

// Read evaluates the end of an attempt.
func (o *owner) Read(c *redisconn.Call) single.Verdict {
	v := c.Val.(single.Verdict)
	for i, m := range o.q.all { // each master's failure once, because the wait may be long
		if err := o.look.votes[i].err; err != nil && o.blamed&(1<<i) == 0 {
			o.blamed |= 1 << i
			v.Errs = append(v.Errs, &memberError{m.name, err})
		}
	}
	o.highest = max(o.highest, o.look.highest)
	o.mu.Lock()
	o.took = o.q.env.Now().Mono - c.At.Mono
	o.mu.Unlock()
	if v.Token > 0 {
		o.won = o.look
		o.won.began = c.At.Mono
		o.last(c.At, o.want.TTL)
	}
	return v
}

// Wake returns the channel that signals when the lock may be free.
func (o *owner) Wake() <-chan struct{} { return o.wake }

// Accept never has a lock: masters only report that a lock is free.
func (o *owner) Accept(timing.Instant) (token int64, at timing.Instant, d time.Duration) {
	return 0, at, 0
}

// Onward reports whether another call may go on with the owner. Once the owner was granted the lock it may not, as
// another attempt would find the lock in its own way.
func (o *owner) Onward() bool { return o.lined && o.won == nil }

// End is for an owner that ended without a release. Nothing may bring the lock back. What a renewal under way still
// does is undone, but not before left has passed.
func (o *owner) End(left time.Duration) {
	o.q.unexpect(o)
	o.mu.Lock()
	o.forgetful = true
	o.mu.Unlock()
	time.AfterFunc(left, func() {
		if gate := o.q.env.Gate; gate.Enter() { // after a Shutdown the lease runs out
			defer gate.Leave()
			o.release()
		}
	})
}

// Undo ends an owner that nobody will use.
func (o *owner) Undo(time.Duration) {
	o.q.unexpect(o)
	switch {
	case o.won != nil:
		o.release()
	case o.lined:
		for i := range o.q.all {
			o.q.resign(i, o.names, o.waiter)
		}
	}
}

// Renew asks all masters for a lease of at least d or, with 0, for what is left of it. If then is not nil, it gets the
// answer, and the calls replace earlier ones that were not sent yet. Otherwise the answer comes within a node timeout for
// each time that the masters are asked, and no error is worth another try. Renew returns nil if the lock is lost or being
// released.
//
// By the wall clock the lease may be over, though its holder counts on it by the monotonic one: the machine was suspended,
// or somebody set the clock. A renewal would bring back what another client may have had since. So most masters must say
// before that they still have the lock. A lease that is over when the renewal is answered counts as lost.
func (o *owner) Renew(ctx context.Context, d time.Duration, then func(*redisconn.Call)) *redisconn.Call {
	now := o.q.env.Now()
	o.mu.Lock()
	forgetful, over := o.forgetful, now.Wall >= o.ends
	o.mu.Unlock()
	switch {
	case forgetful:
		return nil
	case then != nil && !over:
		return o.send(ctx, d, then)
	}
	sum := redisconn.NewSum(o.q.env)
	sum.Then = then
	o.q.env.Go(func() {
		if over && d > 0 {
			if left, err := o.ask(ctx, 0); err != nil || left == int64(0) {
				sum.Answer(left, err)
				return
			}
		}
		sum.Answer(o.ask(ctx, d))
	})
	return sum
}

// ask waits for the answer to a renewal, for a node timeout.
func (o *owner) ask(ctx context.Context, d time.Duration) (any, error) {
	c := o.send(ctx, d, nil)
	if c == nil {
		return nil, spent{errUndone}
	}
	o.mu.Lock()
	o.asking = append(o.asking, c)
	o.mu.Unlock()
	defer func() {
		c.Leave()
		o.mu.Lock()
		o.asking = slices.DeleteFunc(o.asking, func(other *redisconn.Call) bool { return other == c })
		o.mu.Unlock()
	}()
	if o.q.env.Await(context.Background(), o.q.patience(o.want.TTL), c.Done) != 0 {
		return nil, spent{redisconn.ErrSilence}
	}
	if c.Err != nil {
		return nil, spent{c.Err}
	}
	return c.Val, nil
}

// spent is the failure of most masters, each of which had its time.
type spent struct{ error }

func (e spent) Unwrap() error { return e.error }
func (spent) Permanent() bool { return true }

// last notes that a lease of d counts from at.
func (o *owner) last(at timing.Instant, d time.Duration) {
	o.mu.Lock()
	o.ends = at.Wall + int64(d-timing.Margin(d))
	o.mu.Unlock()
}

// send sends a renewal to all masters. Without then, the caller has to leave the call when it has the answer, as a master
// that hangs may never be sent its part.
func (o *owner) send(ctx context.Context, d time.Duration, then func(*redisconn.Call)) *redisconn.Call {
	sum := &tally{o: o, d: d, call: redisconn.NewSum(o.q.env), need: o.q.need, left: len(o.q.all), all: len(o.q.all)}
	sum.call.Then = then
	calls := make([]*redisconn.Call, len(o.q.all))
	for i := range calls {
		if calls[i] = o.renewal(i, d, sum, then != nil, false); calls[i] == nil {
			return nil
		}
	}
	for i, m := range o.q.all {
		m.Send(ctx, calls[i])
		if then == nil {
			sum.call.Parts = append(sum.call.Parts, calls[i])
			continue
		}
		o.mu.Lock()
		p := o.won.ballots[i]
		last := p.renewing
		p.renewing = calls[i]
		o.mu.Unlock()
		if last != nil {
			last.Leave()
		}
	}
	return sum.call
}

// renewal returns the call to one master, whose answer sum counts; nil if there must be none. A call of the scheduler
// goes out again if it fails: its connection may have died with the server, which may be back by now and have forgotten
// the lock.
func (o *owner) renewal(i int, d time.Duration, sum *tally, scheduled, again bool) *redisconn.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forgetful {
		return nil
	}
	m, p := o.q.all[i], o.won.ballots[i]
	if d > 0 {
		p.renewals++
		o.longest = max(o.longest, d)
		o.won.mayHave |= 1 << i
	}
	c := &redisconn.Call{Class: redisconn.Renews, Bulk: true}
	c.Then = func(c *redisconn.Call) {
		err := c.Err
		if d > 0 && (err == nil || redisconn.Harmless(err)) {
			o.mu.Lock()
			p.renewals--
			o.mu.Unlock()
		}
		_, unsent := err.(redisconn.Unsent)
		if err != nil && scheduled && !again && !unsent && !redisconn.Permanent(err) {
			if c := o.renewal(i, d, sum, true, true); c != nil {
				m.Send(context.Background(), c)
				return
			}
		}
		if err != nil && scheduled && m.report(o.q.env.Now().Mono, o.q.patience(o.want.TTL)) {
			o.q.report(o.names.Lock, &memberError{m.name, err})
		}
		sum.add(c.Val, err)
	}
	return c.Set(protocol.Sustain(c.Buf[:0], &p.Names.Lock, &o.names.Fence, &p.Names.Gone, &p.ID, d, o.won.token, o.want.Block))
}

// tally counts the answers to a renewal and answers its call, once: with the lease that most masters have at least,
// with 0 as soon as most cannot have the lock, or with a failure as soon as neither is possible.
type tally struct {
	o    *owner
	d    time.Duration
	call *redisconn.Call

	mu      sync.Mutex // guards what follows
	all     int
	need    int
	left    int     // answers to come
	ours    []int64 // how long each lease is
	others  int
	err     error
	decided bool
}

func (s *tally) add(val any, err error) {
	val, err, decided := s.count(val, err)
	if !decided {
		return
	}
	if left, _ := val.(int64); left != 0 {
		s.o.mu.Lock()
		late := s.d > 0 && s.o.q.env.Now().Wall >= s.o.ends
		s.o.mu.Unlock()
		switch {
		case late:
			val = int64(0)
		case left < 0:
			s.o.last(s.call.At, s.o.want.TTL)
		default:
			s.o.last(s.call.At, timing.Millis(left))
		}
	}
	s.call.Answer(val, err)
}

func (s *tally) count(val any, err error) (any, error, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	lease, ok := protocol.ReadLeft(val)
	switch {
	case err != nil:
		s.err = err
	case !ok:
		s.err = protocol.ErrReply
	case lease == 0:
		s.others++
	case lease < 0: // somebody made the key persistent on this one
		s.ours = append(s.ours, math.MaxInt64)
	default:
		s.ours = append(s.ours, lease)
	}
	if s.decided {
		return nil, nil, false
	}
	s.decided = true
	switch {
	case len(s.ours) >= s.need:
		slices.Sort(s.ours)
		if lease = s.ours[len(s.ours)-s.need]; lease == math.MaxInt64 {
			lease = -1
		}
		return lease, nil, true
	case s.others > s.all-s.need:
		return int64(0), nil, true
	case len(s.ours)+s.left < s.need && s.others+s.left <= s.all-s.need:
		return nil, s.err, true
	}
	s.decided = false
	return nil, nil, false
}

// release is the release of an owner under way. On each master that may have the lock it goes on until the lock is
// known to be free there, or until the longest lease has ended.
type release struct {
	mu       sync.Mutex // guards what follows
	need     int
	all      int
	open     int
	released int
	lost     int
	cause    error
	outcome  single.Outcome
	done     chan struct{} // closed when outcome is set
}

// release begins the release, once.
func (o *owner) release() *release {
	o.mu.Lock()
	r := o.releasing
	if r != nil {
		o.mu.Unlock()
		return r
	}
	n := len(o.q.all)
	r = &release{need: o.q.need, open: n, all: n, outcome: single.Unknown, done: make(chan struct{})}
	o.forgetful, o.releasing = true, r
	lasting := max(o.want.TTL, o.longest)
	left := slices.Clone(o.asking) // renewals that are not needed any more
	for i, p := range o.won.ballots {
		p.Sent, p.Waiter = max(p.Sent, o.won.began), &o.waiter
		if o.won.mayHave&(1<<i) != 0 {
			p.Token = max(p.Token, o.won.token)
		}
		if p.renewing != nil {
			left = append(left, p.renewing)
		}
	}
	o.mu.Unlock()
	for _, c := range left {
		c.Leave()
	}
	for i, p := range o.won.ballots {
		o.mu.Lock()
		p.Tainted = p.Tainted || p.renewals > 0 // rule 4
		o.mu.Unlock()
		if p.Collect() {
			p.Pass(lasting, lasting, r.add)
			continue
		}
		r.add(single.Lost, nil) // this master refused, and was not asked again
		if o.lined {
			o.q.resign(i, o.names, o.waiter)
		}
	}
	return r
}

func (r *release) add(outcome single.Outcome, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	switch outcome {
	case single.Released:
		r.released++
	case single.Lost:
		r.lost++
	default:
		r.cause = cause
	}
	select {
	case <-r.done:
		return
	default:
	}
	switch {
	case r.released >= r.need:
		r.outcome = single.Released
	case r.lost > r.all-r.need:
		r.outcome = single.Lost
	case r.released+r.open < r.need && r.lost+r.open <= r.all-r.need:
	default:
		return
	}
	close(r.done)
}

// Release frees the lock on all masters. It waits for most of them, for at most a node timeout. The rest goes on in the
// background.
func (o *owner) Release(ctx context.Context, limit, _ time.Duration) (single.Outcome, error) {
	o.q.unexpect(o)
	return o.outcome(ctx, o.release(), limit)
}

// Pass is Release for a caller that goes on. When it returns, the commands for all masters are in their queues. told, if
// it is not nil, is called once, when the outcome is known.
func (o *owner) Pass(limit, _ time.Duration, then func(single.Outcome, error)) {
	o.q.unexpect(o)
	r := o.release()
	if then != nil {
		o.q.env.Go(func() { then(o.outcome(o.q.env.Gate.Over, r, limit)) })
	}
}

func (o *owner) outcome(ctx context.Context, r *release, limit time.Duration) (single.Outcome, error) {
	limit = min(limit, o.q.patience(o.want.TTL))
	if ctx.Err() != nil {
		ctx, limit = context.WithoutCancel(ctx), min(limit, single.ReleaseGrace)
	}
	o.q.env.Await(ctx, limit, r.done)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outcome == single.Unknown {
		if r.cause == nil {
			return single.Unknown, redisconn.ErrSilence
		}
		return single.Unknown, r.cause
	}
	return r.outcome, nil
}
