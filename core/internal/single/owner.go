package single

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// grantLease is the first lease of a grant to a waiter in line, if the TTL is longer. The first renewal makes it a
// whole lease. If that never comes, the grant costs the others little.
const grantLease = 3 * time.Second

// Want is what an owner asks for.
type Want struct {
	TTL       time.Duration
	Label     string
	ReentryID string
	Block     int // how many tokens to reserve
	Limit     int // how many may hold the lock together
}

// An Owner holds, or may come to hold, a lock on one Redis.
type Owner struct {
	Tenure
	redis *Redis
	id    string // the re-entry id, or the limit; see protocol.Acquire
	block int

	latest *look               // the latest look that found another holder; nil until one has put the owner in line
	wake   chan protocol.Grant // where the inbox puts a grant; nil while the inbox does not know the owner
}

// look is what Redis answered when it found another holder.
type look struct {
	at   timing.Instant // when the look was sent
	seen int64          // the server's TIME in the answer, in µs
	last int64          // the last token issued by then
}

// Init makes o the owner that the tombstone in names belongs to, or a new one if names has no tombstone.
func (o *Owner) Init(r *Redis, names protocol.Names, want Want) {
	if want.ReentryID != "" {
		names.Enter()
	}
	o.redis, o.id, o.block = r, want.ReentryID, want.Block
	if want.Limit > 1 {
		names.Several, o.id = true, strconv.Itoa(want.Limit)
	}
	o.Start(r.Conn, o, names, want.Label, want.TTL)
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
	plan := o.redis.plan(planFor{o.TTL, o.block, waits, told})
	o.Prepare(c)
	through := false
	defer func() {
		if !through { // a hook panicked: the acquire may have been carried out
			o.Tenure.Leave(c)
		}
	}()
	o.Conn.Do(ctx, c.Set(protocol.Acquire(c.Room[:0], o.Key, &o.Names, &o.ID, plan, &o.id)), limit)
	through = true
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
	if !o.Took(c) {
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

// Wake returns the channel on which a grant arrives; nil if none will.
func (o *Owner) Wake() <-chan protocol.Grant { return o.wake }

// Accept decides whether the owner can rely on a grant that the inbox received. If so, it returns the token, and the
// moment at from which the first lease, of length d, counts. Otherwise the token is 0.
//
// By its clock, Redis made the grant at g.Time, and answered our latest look at l.seen. By our clock, we sent that look
// at l.at, which was before. So the lease began at l.at + (g.Time - l.seen) or later, except for the difference in
// speed of the two clocks. If more time has passed there than here, one clock was set or stood still, and only a new
// look can tell. The same goes for a grant that is not newer than the look, by its token or, if Redis has forgotten the
// tokens, by its time: then we held the lock, lost it in between, and have joined the line again.
func (o *Owner) Accept(g protocol.Grant, now timing.Instant) (token int64, at timing.Instant, d time.Duration) {
	l := o.latest
	if l == nil {
		return 0, at, 0
	}
	span := time.Duration(g.Time-l.seen) * time.Microsecond
	passed := now.Mono - l.at.Mono
	drift := max(0, span/100)
	if l.seen == 0 || g.Token <= l.last || span < 0 || span > passed+drift+2*time.Millisecond {
		return 0, at, 0
	}
	span = min(span, passed) - drift
	o.Token = g.Token
	return g.Token, timing.Instant{Mono: l.at.Mono + span, Wall: l.at.Wall + int64(span)}, min(o.TTL, grantLease)
}

// Onward reports whether another call may go on with the owner: with its place in line, or with the lock itself, which
// another acquire under the same id gets again.
func (o *Owner) Onward() bool { return o.InLine || o.Token > 0 }

// renewal returns the call that lengthens the lease to d.
func (o *Owner) renewal(ctx context.Context, d time.Duration) *redisconn.Call {
	c := &redisconn.Call{Ctx: ctx, Number: d.Milliseconds()}
	return c.Set(protocol.Renew(c.Room[:0], o.Key, &o.Names, &o.ID, &c.Number))
}

// Renew asks for a lease of at least d or, with 0, for what is left of it. The call goes into batch. Without a batch it
// is sent at once, for a holder that may be about to lose the lock.
func (o *Owner) Renew(ctx context.Context, d time.Duration, batch redisconn.Batch) *redisconn.Call {
	c := o.renewal(ctx, d)
	if batch != nil {
		batch[o.Conn] = append(batch[o.Conn], c)
		return c
	}
	c.Urgent = true
	return o.Conn.Send(ctx, c)
}

// Undo ends an owner that nobody will use. since is when its lease was last lengthened.
func (o *Owner) Undo(since time.Duration) {
	o.redis.unexpect(o)
	o.Sent = max(o.Sent, since)
	o.Tenure.Undo()
}

// Release frees the lock as Tenure.Release does. Only when that is done does the inbox forget the owner. Otherwise a
// message about its grant that arrives meanwhile would start an undo next to this release, which would then look like
// the release of a lost lock.
func (o *Owner) Release(ctx context.Context, limit time.Duration) (Outcome, error) {
	defer o.redis.unexpect(o)
	return o.Tenure.Release(ctx, limit)
}

// Pass is Release for a caller that goes on, see Tenure.Pass.
func (o *Owner) Pass(limit time.Duration, told func(Outcome, error)) {
	o.Tenure.Pass(limit, func(outcome Outcome, cause error) {
		o.redis.unexpect(o)
		told(outcome, cause)
	})
}

// Free makes c a release of this owner.
func (o *Owner) Free(c *redisconn.Call, tainted bool) {
	c.Set(protocol.Forget(c.Room[:0], o.Key, &o.Names, &o.ID, &c.Number, tainted))
}

// End is for an owner that ended without a release. There is nothing to undo: no renewal brings back what one server
// has forgotten.
func (o *Owner) End(time.Duration) { o.redis.unexpect(o) }

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
	c := redisconn.NewSum(o.Conn.Env)
	o.Sent = max(o.Sent, c.At.Mono) // an undo has to outlast this lease
	// Not EVALSHA, unlike everywhere else: after a NOSCRIPT, WAIT would cover an older write and might use up all of
	// the time.
	renew, wait := o.renewal(ctx, o.TTL).Full(), []any{"wait", n, within.Milliseconds()}
	o.Conn.Env.Go(func() {
		val1, val2, err := o.Conn.Pair(ctx, o.Names.Lock, limit, renew, wait)
		left, ok1 := protocol.ReadLeft(val1)
		replicas, ok2 := val2.(int64)
		if err == nil && !(ok1 && ok2) {
			err = protocol.ErrReply
		}
		c.Answer(Acked{left, replicas}, err)
	})
	return c
}
