package quorum

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// An Owner holds, or may come to hold, a lock on several masters. It has a tenure on each, all under one owner id. It
// holds the lock if most masters have it, for the lease less a margin for drift and less the time since before the
// first command was sent. A client without a majority releases the key on every master.
//
// Each look is an attempt with an owner id of its own, so that nothing late of one attempt can touch the next. The
// three rules of single.Tenure hold for each master. The fourth is about masters that have forgotten a lock:
//
//  4. A renewal may bring the lock back on a master, so it counts like an acquire. None is sent once a release has been sent
//     or the hold is lost. If a renewal before was not answered, the release leaves a tombstone.
type Owner struct {
	q     *Masters
	names protocol.Names
	want  single.Want

	waiter string // its id in the lines, made with the first attempt that waits
	blamed uint64 // the masters whose failure was reported
	seen   int64  // the largest token that any master reported

	look *attempt // the latest attempt
	won  *attempt // the attempt whose tenures it has
	wake chan protocol.Grant

	mu        sync.Mutex    // guards what follows
	took      time.Duration // how long the latest attempt took
	nudges    uint64        // the masters that reported the lock free since the last look
	timed     bool          // a timer will wake it
	lined     bool          // it stands in line on some master
	longest   time.Duration // the longest lease that was asked for
	forgetful bool          // no renewal may be sent any more: rule 4
	releasing *release
}

// Own returns a new owner. Each of its attempts has an owner id of its own.
func (q *Masters) Own(names protocol.Names, want single.Want) *Owner {
	return &Owner{q: q, names: names, want: want, wake: make(chan protocol.Grant, 1)}
}

// ID is the value of the lock, once the owner has it.
func (o *Owner) ID() string { return o.won.id }

// Try begins an attempt. c is answered when the attempt ends.
func (o *Owner) Try(ctx context.Context, c *redisconn.Call, waits bool, _ time.Duration) (told bool) {
	a := newAttempt(o)
	o.look = a
	if o.waiter == "" && waits && o.q.Up() {
		// Not an owner id: abandoning a place in line must not free a lock.
		o.waiter = fmt.Sprintf("~%016d%s", o.q.now(), a.id[:22])
	}
	o.mu.Lock()
	o.nudges = 0
	select {
	case <-o.wake: // an earlier message
	default:
	}
	o.mu.Unlock()
	told = waits && o.waiter != "" && o.q.expect(o)
	if told {
		o.lined = true
		// The lock is kept for this waiter for about as long as it takes to be notified and to ask.
		reserve := min(max(3*o.took+10*time.Millisecond, 20*time.Millisecond), o.q.Patience(o.want.TTL))
		a.place = protocol.VotePlace(o.waiter, reserve, o.q.Inbox)
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
	return told
}

// Leave stops listening to an attempt, which then undoes itself.
func (o *Owner) Leave(*redisconn.Call) {
	if !o.look.state.CompareAndSwap(attemptRuns, attemptLeft) {
		o.look.undo("") // to undo a failed attempt again does no harm
	}
}

// Read evaluates the end of an attempt.
func (o *Owner) Read(c *redisconn.Call) single.Verdict {
	v := c.Val.(single.Verdict)
	for i, m := range o.q.all { // each master's failure once, because the wait may be long
		if err := o.look.votes[i].err; err != nil && o.blamed&(1<<i) == 0 {
			o.blamed |= 1 << i
			v.Errs = append(v.Errs, &memberError{m.name, err})
		}
	}
	o.seen = max(o.seen, o.look.seen)
	o.mu.Lock()
	o.took = o.q.env.Now().Mono - c.At.Mono
	o.mu.Unlock()
	if v.Token > 0 {
		o.won = o.look
		o.won.began = c.At.Mono
	}
	return v
}

// Wake returns the channel that signals when the lock may be free.
func (o *Owner) Wake() <-chan protocol.Grant { return o.wake }

// Accept never has a lock: masters only report that a lock is free.
func (o *Owner) Accept(protocol.Grant, timing.Instant) (token int64, at timing.Instant, d time.Duration) {
	return 0, at, 0
}

// Onward reports whether another call may go on with the owner. Once the owner was granted the lock it may not, as
// another attempt would find the lock in its own way.
func (o *Owner) Onward() bool { return o.lined && o.won == nil }

// End is for an owner that ended without a release. Nothing may bring the lock back. What a renewal under way still
// does is undone, but not before left has passed.
func (o *Owner) End(left time.Duration) {
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
func (o *Owner) Undo(time.Duration) {
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

// Renew asks all masters for a lease of at least d or, with 0, for what is left of it. The calls go into batch. Without
// a batch they are sent at once. Renew returns nil if the lock is lost or being released.
func (o *Owner) Renew(ctx context.Context, d time.Duration, batch redisconn.Batch) *redisconn.Call {
	sum := &tally{call: redisconn.NewSum(o.q.env), need: o.q.need, left: len(o.q.all), all: len(o.q.all)}
	calls := make([]*redisconn.Call, len(o.q.all))
	for i := range calls {
		if calls[i] = o.renewal(ctx, i, d, sum, batch != nil, false); calls[i] == nil {
			return nil
		}
	}
	for i, m := range o.q.all {
		if batch != nil {
			batch[m.Conn] = append(batch[m.Conn], calls[i])
		} else {
			calls[i].Urgent = true
			m.Send(ctx, calls[i])
		}
	}
	return sum.call
}

// renewal returns the call to one master, whose answer sum counts; nil if there must be none. A call of a batch goes
// out again if it fails: its connection may have died with the server, which may be back by now and have forgotten the
// lock.
func (o *Owner) renewal(ctx context.Context, i int, d time.Duration, sum *tally, batched, again bool) *redisconn.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forgetful {
		return nil
	}
	m, p := o.q.all[i], o.won.parts[i]
	if d > 0 {
		p.renewals++
		o.longest = max(o.longest, d)
		o.won.mayHave |= 1 << i
	}
	c := &redisconn.Call{Ctx: ctx}
	c.Then = func(val any, err error) {
		if d > 0 && (err == nil || redisconn.Harmless(err)) {
			o.mu.Lock()
			p.renewals--
			o.mu.Unlock()
		}
		if err != nil && batched && !again && !redisconn.Permanent(err) {
			if c := o.renewal(ctx, i, d, sum, true, true); c != nil {
				c.Urgent = true
				m.Send(ctx, c)
				return
			}
		}
		if err != nil && batched && m.report(o.q.env.Now().Mono, o.q.Patience(o.want.TTL)) {
			o.q.Report(o.names.Lock, &memberError{m.name, err})
		}
		sum.add(val, err)
	}
	return c.Set(protocol.Sustain(c.Room[:0], p.Key, &o.names.Fence, &p.Names.Gone, &p.ID, d, o.won.token, o.want.Block))
}

// tally counts the answers to a renewal and answers its call, once: with the lease that most masters have at least,
// with 0 as soon as most cannot have the lock, or with a failure as soon as neither is possible.
type tally struct {
	call *redisconn.Call

	mu     sync.Mutex // guards what follows
	all    int
	need   int
	left   int     // answers to come
	ours   []int64 // how long each lease is
	others int
	err    error
	told   bool
}

func (s *tally) add(val any, err error) {
	if val, err, decided := s.count(val, err); decided {
		s.call.Answer(val, err)
	}
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
	if s.told {
		return nil, nil, false
	}
	s.told = true
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
	s.told = false
	return nil, nil, false
}

// release is the release of an owner under way. On each master that may have the lock it goes on until the lock is
// known to be free there, or until the longest lease has ended.
type release struct {
	env   *timing.Env
	limit time.Duration
	asks  []*ask

	mu       sync.Mutex // guards what follows
	late     *time.Timer
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
func (o *Owner) release() *release {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgetful = true
	if o.releasing != nil {
		return o.releasing
	}
	n := len(o.q.all)
	r := &release{
		env: o.q.env, limit: max(o.want.TTL, o.longest), need: o.q.need, open: n, all: n, outcome: single.Unknown,
		done: make(chan struct{}),
	}
	o.releasing = r
	for i, p := range o.won.parts {
		p.Sent, p.waiter = max(p.Sent, o.won.began), o.waiter
		if o.won.mayHave&(1<<i) != 0 {
			p.Token = max(p.Token, o.won.token)
		}
		p.Tainted = p.Tainted || p.renewals > 0 // rule 4
		if !p.Settle() {
			r.add(single.Lost, nil) // this master refused, and was not asked again
			if o.lined {
				o.q.resign(i, o.names, o.waiter)
			}
			continue
		}
		r.env.Gate.Join()
		a := &ask{part: p, call: p.Freeing()}
		a.call.Then = func(val any, err error) { r.answered(a, val, err) }
		r.asks = append(r.asks, a)
	}
	for _, a := range r.asks {
		a.Conn.Send(r.env.Gate.Over, a.call)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open > 0 {
		r.late = time.AfterFunc(timing.Patience(o.want.TTL), r.chase)
	}
	return r
}

// ask is the first release that goes to one master. The lane that brings the answer counts it. A goroutine goes on only
// after an error, or if no answer came in time.
type ask struct {
	*part
	call  *redisconn.Call
	taken atomic.Bool // set by the goroutine that deals with the answer, or with the lack of one
}

func (r *release) answered(a *ask, val any, err error) {
	switch {
	case a.taken.Swap(true):
	case err == nil:
		r.add(a.Released(val))
		r.env.Gate.Leave()
	default:
		a.Unheard(err)
		go r.goOn(a)
	}
}

// chase deals with the asks that have not been answered.
func (r *release) chase() {
	for _, a := range r.asks {
		if !a.taken.Swap(true) {
			a.call.Leave()
			a.Unheard(nil)
			go r.goOn(a)
		}
	}
}

func (r *release) goOn(a *ask) {
	defer r.env.Gate.Leave()
	r.add(a.Tenure.Release(r.env.Gate.Over, r.limit))
}

func (r *release) add(outcome single.Outcome, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open--; r.open == 0 && r.late != nil {
		r.late.Stop()
	}
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
func (o *Owner) Release(ctx context.Context, limit time.Duration) (single.Outcome, error) {
	o.q.unexpect(o)
	return o.outcome(ctx, o.release(), limit)
}

// Pass is Release for a caller that goes on. When it returns, the commands for all masters have been sent. told is
// called, once, when the outcome is known.
func (o *Owner) Pass(limit time.Duration, told func(single.Outcome, error)) {
	o.q.unexpect(o)
	r := o.release()
	o.q.env.Go(func() { told(o.outcome(o.q.env.Gate.Over, r, limit)) })
}

func (o *Owner) outcome(ctx context.Context, r *release, limit time.Duration) (single.Outcome, error) {
	limit = min(limit, o.q.Patience(o.want.TTL))
	if ctx.Err() != nil {
		ctx, limit = context.WithoutCancel(ctx), min(limit, single.ReleaseGrace)
	}
	o.q.env.Await(ctx, r.done, limit)
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
