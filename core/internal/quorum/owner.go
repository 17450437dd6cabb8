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

// An Owner has, or may come to have, a lock on several masters: on each a tenure under one owner id. It has the lock if it
// is on a majority, for the lease less the time since before the first command was sent and a margin for drift. A
// client without a majority releases the key on every master.
//
// Each look is an attempt with an id of its own, so that what is late of one cannot touch the next. The three rules of
// single.Tenure hold for each master; the fourth is about those that have forgotten a lock:
//
//  4. A renewal may bring the lock back on a master, so it counts like an acquire: none is sent once a release was, or
//     the hold is lost, and where one was not answered before, the release leaves a tombstone.
type Owner struct {
	q     *Masters
	names protocol.Names
	want  single.Want

	waiter string // its id in the lines; of the first attempt
	blamed uint64 // the masters whose failure was told
	seen   int64  // the largest token that any master told of

	look *attempt // the latest
	won  *attempt // whose tenures it has
	wake chan protocol.Grant

	mu        sync.Mutex    // guards what follows
	took      time.Duration // by the latest attempt
	nudges    uint64        // the masters that told it that the lock is free, since the last look
	timed     bool          // a timer will wake it
	lined     bool          // it stands in line somewhere
	longest   time.Duration // lease that was asked for
	forgetful bool          // rule 4
	releasing *release
}

// Own is a new owner; each attempt has an owner id of its own.
func (q *Masters) Own(names protocol.Names, want single.Want) *Owner {
	return &Owner{q: q, names: names, want: want, wake: make(chan protocol.Grant, 1)}
}

// ID is the value of the lock, once it has it.
func (o *Owner) ID() string { return o.won.id }

// Try begins an attempt, which c tells the end of.
func (o *Owner) Try(ctx context.Context, c *redisconn.Call, waits bool, _ time.Duration) (told bool) {
	a := newAttempt(o)
	o.look = a
	if o.waiter == "" && waits && o.q.Up() {
		// Not an owner id: to give up a place in line must not free a lock.
		o.waiter = fmt.Sprintf("~%016d%s", o.q.now(), a.id[:22])
	}
	o.mu.Lock()
	o.nudges = 0
	select {
	case <-o.wake: // by what was told before
	default:
	}
	o.mu.Unlock()
	told = waits && o.waiter != "" && o.q.expect(o)
	if told {
		o.lined = true
		// The lock is kept for it for about as long as it needs to be told and to ask.
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
				quiet = "" // clients that were in each other's way may not all know
			}
			a.undo(quiet)
		}
		c.Answer(v, nil)
	})
	return told
}

// Leave stops listening to an attempt: it undoes itself.
func (o *Owner) Leave(*redisconn.Call) {
	if !o.look.state.CompareAndSwap(attemptRuns, attemptLeft) {
		o.look.undo("") // again does no harm where it has failed
	}
}

// Read takes the end of an attempt into account.
func (o *Owner) Read(c *redisconn.Call) single.Verdict {
	v := c.Val.(single.Verdict)
	for i, m := range o.q.all { // of each once, as the wait may be long
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

// Wake tells that the lock may be free.
func (o *Owner) Wake() <-chan protocol.Grant { return o.wake }

// Accept never has a lock: masters only tell that they are free.
func (o *Owner) Accept(protocol.Grant, timing.Instant) (token int64, at timing.Instant, d time.Duration) {
	return 0, at, 0
}

// Onward tells whether another call may go on with it: not once it was granted, as another attempt would find the lock in
// its own way.
func (o *Owner) Onward() bool { return o.lined && o.won == nil }

// End is for an owner that ended without a release: nothing may bring it back, and what a renewal that is under way still
// does is undone, but not before left is over.
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

// Renew asks all masters for a lease of at least d, or, with 0, what is left: in a batch, or else at once. It returns nil
// where the lock is lost or being released.
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

// renewal is the call to one master, which counts for sum; nil where there must be none. One of a batch goes out again
// where it fails: the connection may have died with the server that is back now, and has forgotten the lock.
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

// tally counts the answers to a renewal, and tells once what they come to: the lease that most masters have at least;
// 0 as soon as most cannot have it; a failure as soon as neither can come about any more.
type tally struct {
	call *redisconn.Call

	mu     sync.Mutex // guards what follows
	all    int
	need   int
	left   int     // to come
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

// release is the release of an owner under way: on each master that may have the lock, until it is known to be free
// there or the longest lease is over.
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

// release begins it, once.
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
			r.add(single.Lost, nil) // it refused, and was not asked again
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

// ask is the first release that goes to one master. The lane that brings the answer counts it; a goroutine goes on only after
// an error, or without an answer in time.
type ask struct {
	*part
	call  *redisconn.Call
	taken atomic.Bool // somebody sees to it
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

// chase sees to those that have not been answered.
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

// Release frees the lock on all masters, and waits for most of them for at most a node timeout; the rest goes on in the
// background.
func (o *Owner) Release(ctx context.Context, limit time.Duration) (single.Outcome, error) {
	o.q.unexpect(o)
	return o.outcome(ctx, o.release(), limit)
}

// Pass is Release for a caller that goes on. All masters have been sent their commands when it returns; told is called, once,
// when the outcome is known.
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
