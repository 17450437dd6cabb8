package single

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// grantLease is the first lease of a grant to a waiter in line, if the TTL is longer. The first renewal makes it a
// whole lease. If that never comes, the grant costs the others little.
const grantLease = 3 * time.Second

// tokenAhead is how far the token of a grant may be ahead of both the clock of Redis and the last token that a waiter
// knows: see Accept.
const tokenAhead = 10 * time.Second

// Want is what an owner asks for.
type Want struct {
	TTL       time.Duration
	Label     string
	ReentryID string
	Block     int    // how many tokens to reserve
	Limit     int    // how many may hold the lock together
	Acks      int    // how many replicas must have the lock; see Confirm
	Share     *Share // nil: the zero Share
}

// A Share is whose turn an owner takes in the wait line, see turn.lua.
type Share struct {
	Name   string // "" for none
	Weight int    // of a grant; 0 counts as 1
}

// An Owner holds, or may come to hold, a lock on one Redis.
type Owner struct {
	Tenure
	redis *Redis
	block int
	share *Share

	renewing atomic.Pointer[redisconn.Call] // the scheduler's latest renewal

	latest *look         // the latest look that found another holder; nil until one has put the owner in line
	grant  grant         // what the inbox received last; guarded by the mutex of redis, as wake is
	wake   chan struct{} // signals that; nil while the inbox does not know the owner
}

// grant is what a message says of a grant: its token, and the server's TIME, in µs.
type grant struct{ token, time int64 }

// look is what Redis answered when it found another holder.
type look struct {
	at   timing.Instant // when the look was sent
	seen int64          // the server's TIME in the answer, in µs
	last int64          // the last token issued by then
}

// Init makes o the owner that the tombstone in names belongs to.
func (o *Owner) Init(r *Redis, names protocol.Names, want Want) {
	o.redis, o.block, o.share = r, want.Block, want.Share
	names.Admits = protocol.Admits(want.Limit, want.ReentryID)
	o.Start(r.Conn, o, names, want.TTL)
}

// Verdict is what an answered acquire means.
type Verdict struct {
	Token int64 // granted: the token, or the first of a block; else 0

	Held    bool // by another holder, which the fields below are about
	Left    int64
	Label   string
	Holders int  // how many hold it together; 0 if one holds it alone
	Place   int  // in line, 1 is the first; 0 outside
	Foreign bool // certainly not held by holdfast
	Deaf    bool // the server cannot notify this owner, though its inbox is open
	Split   bool // several clients have a part of the masters each, so that none holds the lock

	Err  error   // neither granted nor held: nothing is known
	Errs []error // of single masters, for the hooks of a Trace
}

// Try sends c, an acquire. With waits it also joins the line, or refreshes its place there. told reports whether a
// grant will arrive on Wake. limit is how long the answer may take.
func (o *Owner) Try(ctx context.Context, c *redisconn.Call, waits bool, limit time.Duration) (told bool) {
	told = waits && o.redis.expect(o)
	plan := o.redis.plan(planFor{o.TTL, o.block, o.share, waits, told})
	o.Conn.Do(ctx, c.Set(protocol.Acquire(c.Buf[:0], &o.Names, &o.ID, plan)), limit)
	return told
}

// Read evaluates the answer to an acquire that a call has waited for.
func (o *Owner) Read(c *redisconn.Call) Verdict {
	v := o.read(c)
	if v.Token > 0 { // the lease of an earlier grant, with another token, may have ended while nobody could listen
		o.Token = v.Token
	}
	return v
}

// Take is Read for an answer that no call has waited for.
func (o *Owner) Take(c *redisconn.Call) { o.read(c) }

func (o *Owner) read(c *redisconn.Call) Verdict {
	if !o.Note(c) {
		return Verdict{Err: c.Err}
	}
	r, ok := protocol.ReadAcquired(c.Val)
	switch {
	case !ok, r.Undone: // Undone only ever answers an acquire that no call waits for
	case r.Exhausted:
		return Verdict{Err: protocol.ErrExhausted}
	case r.Held:
		o.InLine = r.Place > 0
		if o.latest == nil && o.InLine {
			o.latest = new(look)
		}
		if o.latest != nil {
			*o.latest = look{c.At, r.Time, r.Last}
		}
		if r.Place > 0 {
			o.redis.inbox.answered(c.At, r.Deaf)
		}
		return Verdict{
			Held: true, Left: r.Left, Label: protocol.LabelOf(r.Value), Holders: r.Holders, Place: r.Place, Foreign: r.Foreign, Deaf: r.Deaf != protocol.Hears,
		}
	default:
		if o.Token == 0 { // it may be the late answer to an older acquire, which got another token and lost it
			o.Token = r.Token
		}
		return Verdict{Token: r.Token}
	}
	o.Tainted = true
	return Verdict{Err: protocol.ErrReply}
}

// Wake returns the channel that signals the arrival of a grant; nil if none will arrive.
func (o *Owner) Wake() <-chan struct{} { return o.wake }

// Accept decides whether the owner can rely on the grant that the inbox received. If so, it returns the token, and the
// moment at from which the first lease, of length d, counts. Otherwise the token is 0.
//
// By its clock, Redis made the grant at g.time, and answered our latest look at l.seen. By our clock, we sent that look
// at l.at, which was before. So the lease began at l.at + (g.time - l.seen) or later, except for the difference in
// speed of the two clocks. If more time has passed there than here, one clock was set or stood still, and only a new
// look can tell. The same goes for a grant that is not newer than the look, by its token or, if Redis has forgotten the
// tokens, by its time: then we held the lock, lost it in between, and have joined the line again.
//
// A token that is far ahead of that clock is not from Redis: relied on, it would shut out all later holders wherever it
// is a fence. A script issues the larger of the last token + 1 and its TIME, and blocks keep the pace of the clock. So an
// honest token exceeds the time of its grant only where the look, two seconds ago, knew of one that did, and then by
// little more. A clock that was set forward by more than tokenAhead and back again, all since the look, is the exception,
// and costs a look.
func (o *Owner) Accept(now timing.Instant) (token int64, at timing.Instant, d time.Duration) {
	o.redis.mu.Lock()
	g := o.grant
	o.redis.mu.Unlock()
	l := o.latest
	if l == nil || l.seen <= 0 || g.time < l.seen || g.time-l.seen > math.MaxInt64/int64(time.Microsecond) {
		return 0, at, 0
	}
	span := time.Duration(g.time-l.seen) * time.Microsecond
	passed := now.Mono - l.at.Mono
	drift := span / 100
	switch {
	case span > passed+drift+2*time.Millisecond,
		g.token <= l.last, g.token-tokenAhead.Microseconds() > max(l.last, g.time):
		return 0, at, 0
	}
	span = min(span, passed) - drift
	o.Token = g.token
	return g.token, timing.Instant{Mono: l.at.Mono + span, Wall: l.at.Wall + int64(span)}, min(o.TTL, grantLease)
}

// Onward reports whether another call may go on with the owner: with its place in line, or with the lock itself, which
// another acquire under the same id gets again.
func (o *Owner) Onward() bool { return o.InLine || o.Token > 0 }

// renewal returns the call that lengthens the lease to d.
func (o *Owner) renewal(d time.Duration) *redisconn.Call {
	c := &redisconn.Call{Number: d.Milliseconds(), Class: redisconn.Renews, Bulk: true}
	return c.Set(protocol.Renew(c.Buf[:0], &o.Names, &o.ID, &c.Number))
}

// Renew asks for a lease of at least d or, with 0, for what is left of it. If then is not nil, it gets the answer, and
// replaces an earlier such call that was not sent yet. The answer may come on a goroutine that others wait for.
func (o *Owner) Renew(ctx context.Context, d time.Duration, then func(*redisconn.Call)) *redisconn.Call {
	c := o.renewal(d)
	c.Then = then
	o.Conn.Send(ctx, c)
	if then != nil {
		if last := o.renewing.Swap(c); last != nil {
			last.Leave()
		}
	}
	return c
}

// Undo ends an owner that nobody will use. since is when its lease was last lengthened.
func (o *Owner) Undo(since time.Duration) {
	o.retract()
	o.redis.unexpect(o)
	o.Sent = max(o.Sent, since)
	o.Tenure.Undo()
}

// Release frees the lock as Tenure.Release does. Only when that is done does the inbox forget the owner. Otherwise a
// message about its grant that arrives meanwhile would start an undo next to this release, which would then look like
// the release of a lost lock.
func (o *Owner) Release(ctx context.Context, limit, lasting time.Duration) (Outcome, error) {
	o.retract()
	defer o.redis.unexpect(o)
	return o.Tenure.Release(ctx, limit, lasting)
}

// Pass is Release for a caller that goes on, see Tenure.Pass.
func (o *Owner) Pass(limit, lasting time.Duration, told func(Outcome, error)) {
	o.retract()
	o.Tenure.Pass(limit, lasting, func(outcome Outcome, cause error) {
		o.redis.unexpect(o)
		if told != nil {
			told(outcome, cause)
		}
	})
}

// End is for an owner that ended without a release. There is nothing to undo: no renewal brings back what one server
// has forgotten.
func (o *Owner) End(time.Duration) {
	o.retract()
	o.redis.unexpect(o)
}

// retract takes back a renewal that was not sent yet. The owner has ended, and none is to lengthen its lease any more.
func (o *Owner) retract() {
	if last := o.renewing.Swap(nil); last != nil {
		last.Leave()
	}
}

// Acked is the answer to Confirm.
type Acked struct {
	Left     int64 // as in a reply of renew.lua
	Replicas int64 // how many have the renewal
}

// Confirm renews the lease and makes Redis wait until n replicas have the renewal, for at most within. Nobody listens
// for longer than limit.
//
// WAIT covers the last write of its own connection. The grant may have come over another connection, or somebody else's
// release may have made it. So a write of our own, which comes after the grant, goes in front. renew.lua writes even if
// the lease is whole.
func (o *Owner) Confirm(ctx context.Context, n int, within, limit time.Duration) *redisconn.Call {
	// Not EVALSHA, unlike everywhere else: after a NOSCRIPT, WAIT would cover an older write and might use up all of
	// the time.
	c := o.renewal(o.TTL)
	c.Bulk, c.Args = false, c.Full()
	o.Sent = max(o.Sent, o.Conn.Env.Now().Mono+limit) // an undo has to outlast this lease, which nobody listens to for longer
	return o.Conn.Pair(ctx, c, limit, []any{"wait", n, within.Milliseconds()}, func(val1, val2 any) (any, error) {
		left, ok1 := protocol.ReadLeft(val1)
		replicas, ok2 := val2.(int64)
		if !ok1 || !ok2 {
			return nil, protocol.ErrReply
		}
		return Acked{left, replicas}, nil
	})
}
