package single

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// grantLease is what a lease that is granted to somebody in line begins with, where the TTL is longer: it becomes a whole
// one with the first renewal, and costs the others little where it never is.
const grantLease = 3 * time.Second

// Want is what an owner asks for.
type Want struct {
	TTL       time.Duration
	Label     string
	ReentryID string
	Block     int // how many tokens are reserved, from the first on
	Limit     int // how many may hold the lock together
}

// An Owner has, or may come to have, a lock on one Redis.
type Owner struct {
	Tenure
	redis *Redis
	id    string // for re-entry, or the limit; see protocol.Acquire
	block int

	latest *look               // that found the lock held elsewhere; nil before one that put it in line
	wake   chan protocol.Grant // of the inbox, while it knows the owner
}

// look is what Redis told one that found the lock held elsewhere.
type look struct {
	at   timing.Instant // when it was sent
	seen int64          // the server's TIME at it, in µs
	last int64          // the last token issued then
}

// Init makes o the owner that names has, or else a new one.
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
	Token int64 // granted, with this one or the first of a block; else 0

	Held    bool // by somebody else; what follows is about that
	Left    int64
	Label   string
	Holders int  // together; 0 where one holds it alone
	Place   int  // in line, 1 is the first; 0 outside
	Foreign bool // surely not by holdfast
	Deaf    bool // this one will not be told, though its inbox is open
	Split   bool // between several clients, so that none has it

	Err  error   // neither: cannot know
	Errs []error // of single masters, for the hooks of a Trace
}

// Try sends c, one acquire. With waits it also joins the line, or refreshes its place in it; told says whether it will
// hear of a grant. limit is how long the answer may take.
func (o *Owner) Try(ctx context.Context, c *redisconn.Call, waits bool, limit time.Duration) (told bool) {
	told = waits && o.redis.expect(o)
	plan := o.redis.plan(planFor{o.TTL, o.block, waits, told})
	o.Prepare(c)
	through := false
	defer func() {
		if !through { // a hook panicked: it may have been carried out
			o.Tenure.Leave(c)
		}
	}()
	o.Conn.Do(ctx, c.Set(protocol.Acquire(c.Room[:0], o.Key, &o.Names, &o.ID, plan, &o.id)), limit)
	through = true
	return told
}

// Read takes the answer that was waited for into account.
func (o *Owner) Read(c *redisconn.Call) Verdict {
	v := o.read(c)
	if v.Token > 0 { // the lease of an earlier one, with another token, may have ended while nobody could listen
		o.Token = v.Token
	}
	return v
}

// Take is Read for an answer that nobody waited for.
func (o *Owner) Take(c *redisconn.Call) { o.read(c) }

func (o *Owner) read(c *redisconn.Call) Verdict {
	if !o.Took(c) {
		return Verdict{Err: c.Err}
	}
	r, ok := protocol.ReadAcquired(c.Val)
	switch {
	case !ok, r.Undone: // which only ever answers an acquire that nobody waits for
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
		if o.Token == 0 { // or it may be the late answer of an older one, which got another token and lost it
			o.Token = r.Token
		}
		return Verdict{Token: r.Token}
	}
	o.Tainted = true
	return Verdict{Err: protocol.ErrReply}
}

// Wake is where a grant arrives; nil where none will.
func (o *Owner) Wake() <-chan protocol.Grant { return o.wake }

// Accept looks at a grant that the inbox received: whether the owner can rely on it, and if so with which token and from
// when on its first lease, of d, is to be counted.
//
// Redis made the grant at g.Time by its clock, and answered our latest look at l.seen; that look was sent before,
// at l.at by ours. So the lease began at l.at + (g.Time - l.seen) or later, but for the difference in
// speed of two clocks. Where more time has passed there than here, one of them was set or stood still, and
// only a new look can tell. The same goes for a grant that is not newer than the look, by its token or, where Redis
// has forgotten the tokens, its time: then we held the lock and lost it in between, and have joined the line again.
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

// Onward tells whether another call may go on with it: with its place in line, or with the lock itself, which asking again
// under the same id gets.
func (o *Owner) Onward() bool { return o.InLine || o.Token > 0 }

// renewal is a call that lengthens the lease to d.
func (o *Owner) renewal(ctx context.Context, d time.Duration) *redisconn.Call {
	c := &redisconn.Call{Ctx: ctx, Number: d.Milliseconds()}
	return c.Set(protocol.Renew(c.Room[:0], o.Key, &o.Names, &o.ID, &c.Number))
}

// Renew asks for a lease of at least d, or, with 0, what is left: in a batch, or else at once, for a holder that may be
// about to lose the lock.
func (o *Owner) Renew(ctx context.Context, d time.Duration, batch redisconn.Batch) *redisconn.Call {
	c := o.renewal(ctx, d)
	if batch != nil {
		batch[o.Conn] = append(batch[o.Conn], c)
		return c
	}
	c.Urgent = true
	return o.Conn.Send(ctx, c)
}

// Undo ends an owner that nobody will use. since is when its lease was lengthened last.
func (o *Owner) Undo(since time.Duration) {
	o.redis.unexpect(o)
	o.Sent = max(o.Sent, since)
	o.Tenure.Undo()
}

// Release frees the lock as Tenure.Release does. Only then are its messages strange: one of the grant that came before
// would have it undone beside this release, which then looked like the release of a lock that was lost.
func (o *Owner) Release(ctx context.Context, limit time.Duration) (Outcome, error) {
	defer o.redis.unexpect(o)
	return o.Tenure.Release(ctx, limit)
}

// Pass is Release for a caller that goes on, as Tenure.Pass is.
func (o *Owner) Pass(limit time.Duration, told func(Outcome, error)) {
	o.Tenure.Pass(limit, func(outcome Outcome, cause error) {
		o.redis.unexpect(o)
		told(outcome, cause)
	})
}

// Free makes c a release.
func (o *Owner) Free(c *redisconn.Call, tainted bool) {
	c.Set(protocol.Forget(c.Room[:0], o.Key, &o.Names, &o.ID, &c.Number, tainted))
}

// End is for an owner that ended without a release: no renewal brings back what one server has forgotten.
func (o *Owner) End(time.Duration) { o.redis.unexpect(o) }

// Acked is the answer to Confirm.
type Acked struct {
	Left     int64 // as renew.lua replies
	Replicas int64 // that have it
}

// Confirm renews the lease and has Redis wait until n replicas know, for at most within. Nobody listens for longer than
// limit.
//
// WAIT is about the last write of its own connection, and the grant may have come over another, or have been made
// by somebody else's release. So a write of our own goes in front, which comes after the grant; renew.lua sees to
// it that it is one also where the lease is whole.
func (o *Owner) Confirm(ctx context.Context, n int, within, limit time.Duration) *redisconn.Call {
	c := redisconn.NewSum(o.Conn.Env)
	o.Sent = max(o.Sent, c.At.Mono) // undo has to outlast this lease
	// Not EVALSHA, unlike everywhere else: behind a NOSCRIPT, WAIT would be about an older write and might use up
	// all of the time.
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
