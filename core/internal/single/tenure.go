package single

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// ReleaseGrace is how long a release waits for Redis if its context has already ended: long enough for one round trip,
// so that a deferred Release after a cancelled request still reports what happened.
const ReleaseGrace = 20 * time.Millisecond

// A Tenure is the ownership of a lock on one server, from the first acquire that is sent until the release. Three rules
// make lost, resent and delayed commands harmless:
//
//  1. The owner id names this tenure alone. Once a release has been sent, no acquire is sent under it any more. So no late
//     command of this tenure can act on another.
//  2. No script shortens a lease: a late renewal cannot cut a lease that was extended since.
//  3. If the outcome of any acquire is unknown when the tenure ends, its release also leaves a tombstone. An acquire that is
//     still on its way finds the tombstone and does nothing.
type Tenure struct {
	Conn  *redisconn.Conn
	Names protocol.Names
	ID    string // of the owner: the value of the lock
	TTL   time.Duration

	Token   int64         // the first; 0 until granted
	Sent    time.Duration // when the latest acquire that may have taken effect went out
	InLine  bool          // the latest look left it in line
	Tainted bool          // rule 3: an acquire failed in a way that leaves its outcome open
	resent  bool          // a release went out and was not answered

	Key     any // Names.Lock, or a pointer to it, which saves an allocation
	is      Commands
	pending []*redisconn.Call // acquires that no call waits for any more and that may still be answered
}

// Commands is what differs between a lock on one server and a lock on several.
type Commands interface {
	Take(c *redisconn.Call)               // evaluates an answered acquire
	Free(c *redisconn.Call, tainted bool) // makes c a release
}

// Start makes t a tenure of the owner that the tombstone in names belongs to, or of a new owner if names has no
// tombstone.
func (t *Tenure) Start(conn *redisconn.Conn, is Commands, names protocol.Names, label string, ttl time.Duration) {
	if names.Gone == "" {
		names.Anew(label)
	}
	t.Conn, t.is = conn, is
	t.Names, t.ID, t.TTL, t.Key = names, names.Owner(), ttl, &t.Names.Lock
	if conn.Many() { // go-redis picks the node by a key that is a string
		t.Key = names.Lock
	}
}

// Prepare makes c go past commands that hang, if there are any.
func (t *Tenure) Prepare(c *redisconn.Call) { c.Urgent = c.Urgent || len(t.pending) > 0 || t.resent }

// Leave stops listening to an acquire that may still be answered.
func (t *Tenure) Leave(c *redisconn.Call) {
	c.Leave()
	t.pending = append(t.pending, c)
}

// Straggles is Leave for an acquire that is still wanted: if it has not been sent yet, it is sent.
func (t *Tenure) Straggles(c *redisconn.Call) { t.pending = append(t.pending, c) }

// Took notes an answered acquire, and reports whether there is a reply to read.
func (t *Tenure) Took(c *redisconn.Call) bool {
	if c.Err != nil && redisconn.Harmless(c.Err) {
		return false
	}
	t.Sent = max(t.Sent, c.At.Mono)
	t.Tainted = t.Tainted || c.Err != nil
	return c.Err == nil
}

// Settle evaluates the acquires that no call waits for. It reports whether Redis may hold, or come to hold, the lock
// for this tenure.
func (t *Tenure) Settle() bool {
	open := t.pending[:0]
	for _, c := range t.pending {
		if c.Answered() {
			t.is.Take(c)
		} else {
			open = append(open, c)
		}
	}
	t.pending = open
	return t.Token > 0 || t.InLine || t.Tainted || len(open) > 0
}

// ends returns the latest moment at which something that the latest acquire brought about can end: its lease, or its
// place in line and the lease of a grant.
func (t *Tenure) ends() time.Duration {
	sent := t.Sent
	for _, c := range t.pending {
		sent = max(sent, c.At.Mono)
	}
	return sent + max(t.TTL, protocol.EntryLife+grantLease)
}

// Undo ends a tenure that nobody will use, in the background if Redis has to be asked.
func (t *Tenure) Undo() {
	if !t.Settle() {
		return
	}
	t.Conn.Env.Go(func() {
		// An answer that is about to come makes the tombstone, or the whole command, unnecessary.
		end := t.Conn.Env.Now().Mono + timing.Patience(t.TTL)
		for _, c := range t.pending {
			t.Conn.Env.Await(context.Background(), c.Done, end-t.Conn.Env.Now().Mono)
		}
		if t.Settle() {
			// Once the lease of the last acquire has ended, there is nothing left to undo.
			_, _ = t.Release(t.Conn.Env.Gate.Over, t.ends()-t.Conn.Env.Now().Mono)
		}
	})
}

// An Outcome of a release.
type Outcome int

const (
	Released Outcome = iota
	Lost             // the tenure had ended without a release
	Unknown          // Redis did not confirm
)

var errForgotten = errors.New("a release went unanswered, and Redis has no record of it")

// Release frees the lock, whether or not Redis still has it as ours. If Redis fails to answer, it tries again until
// limit has passed or ctx ends. Together with Unknown it returns the last failure.
func (t *Tenure) Release(ctx context.Context, limit time.Duration) (Outcome, error) {
	now := func() time.Duration { return t.Conn.Env.Now().Mono }
	if ctx.Err() != nil {
		ctx, limit = context.WithoutCancel(ctx), min(limit, ReleaseGrace)
	}
	end, cause := now()+limit, redisconn.ErrSilence
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if !t.Settle() {
			return Released, nil // the acquires turned out to have changed nothing
		}
		c := t.send(ctx, min(timing.Patience(t.TTL), end-now()))
		why := timing.Told
		if c.Done != nil { // nil if it was run on this goroutine
			why = t.Conn.Env.Await(ctx, c.Done, min(c.At.Mono+timing.Patience(t.TTL), end)-now())
		}
		if why == timing.Told {
			c.Heard()
			if c.Err == nil {
				return t.Released(c.Val)
			}
			cause = c.Err
			t.Unheard(cause)
			if redisconn.Permanent(cause) {
				return Unknown, cause
			}
			why = t.Conn.Env.Await(ctx, nil, min(pause, end-now()))
		} else {
			c.Leave()
			t.Unheard(nil)
		}
		if why == timing.Ended || now() >= end {
			return Unknown, cause
		}
	}
}

// Pass is Release of a held lock for a caller that goes on. It calls told, once, when the outcome is known. If the
// first try is answered, the goroutine that brings the answer calls told. Only another try takes a goroutine of its
// own.
func (t *Tenure) Pass(limit time.Duration, told func(Outcome, error)) {
	env := t.Conn.Env
	_ = t.Settle()        // evaluates answers that came meanwhile; that there is a lock is known
	var taken atomic.Bool // set by the goroutine that deals with the outcome; no other touches t
	c, end := t.Freeing(), env.Now().Mono+limit
	goOn := func() { told(t.Release(env.Gate.Over, end-env.Now().Mono)) }
	late := time.AfterFunc(timing.Patience(t.TTL), func() {
		if !taken.Swap(true) {
			c.Leave()
			t.Unheard(nil)
			goOn()
		}
	})
	c.Then = func(val any, err error) {
		if taken.Swap(true) {
			return
		}
		late.Stop()
		<-c.Done
		c.Heard()
		if err == nil {
			told(t.Released(val))
			return
		}
		t.Unheard(err)
		if redisconn.Permanent(err) {
			told(Unknown, err)
			return
		}
		go goOn()
	}
	t.Conn.Send(env.Gate.Over, c)
}

// Freeing returns a release to be sent. Once it is sent, its answer goes to Released, and an error, or the lack of an
// answer, to Unheard.
func (t *Tenure) Freeing() *redisconn.Call {
	c := &redisconn.Call{Number: t.Token} // a copy: Token may change while c is under way
	t.Prepare(c)
	t.is.Free(c, t.Tainted || len(t.pending) > 0)
	return c
}

// Unheard notes that a release may have been carried out, unless err says that it was not.
func (t *Tenure) Unheard(err error) { t.resent = t.resent || err == nil || !redisconn.Harmless(err) }

// send sends a release.
func (t *Tenure) send(ctx context.Context, patience time.Duration) *redisconn.Call {
	c := t.Freeing()
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end))
	}
	if ctx.Done() != nil {
		c.Lasting.Context = ctx
		ctx = &c.Lasting
	}
	return t.Conn.Do(ctx, c, patience)
}

// Released returns what the answer to a release means.
func (t *Tenure) Released(val any) (Outcome, error) {
	r, ok := protocol.ReadForgotten(val)
	switch {
	case !ok:
		return Unknown, protocol.ErrReply
	case r == protocol.Released, r == protocol.Already && t.resent:
		return Released, nil
	case r == protocol.Unknown && t.resent: // an earlier one may have freed it before the fence was forgotten
		return Unknown, errForgotten
	}
	// If the tenure was released before, it was not by us: the server fell back to a state from before this tenure, and
	// another tenure has come since.
	return Lost, nil
}
