package single

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	Conn   *redisconn.Conn
	Names  protocol.Names
	ID     string // of the owner: the value of the lock
	TTL    time.Duration
	Waiter *string // of one of several masters: what its release does with the line, see protocol.Yield

	Token   int64         // the first; 0 until granted
	Sent    time.Duration // when the latest acquire that may have taken effect went out
	InLine  bool          // the latest look left it in line
	Tainted bool          // rule 3: an acquire failed in a way that leaves its outcome open

	is      Taker
	pending []*redisconn.Call // acquires that no call waits for any more and that may still be answered
}

// Taker evaluates an answered acquire, which differs between a lock on one server and a lock on several.
type Taker interface{ Take(c *redisconn.Call) }

// Start makes t a tenure of the owner that the tombstone in names belongs to.
func (t *Tenure) Start(conn *redisconn.Conn, is Taker, names protocol.Names, ttl time.Duration) {
	t.Conn, t.is = conn, is
	t.Names, t.ID, t.TTL = names, names.Owner(), ttl
}

// Leave stops listening to an acquire. One that was never sent is as if it had not been made.
func (t *Tenure) Leave(c *redisconn.Call) {
	if !c.Leave() {
		t.pending = append(t.pending, c)
	}
}

// Keep is for an acquire that is still wanted: if it has not been sent yet, it is sent.
func (t *Tenure) Keep(c *redisconn.Call) { t.pending = append(t.pending, c) }

// Note notes an answered acquire, and reports whether there is a reply to read.
func (t *Tenure) Note(c *redisconn.Call) bool {
	if c.Err != nil && redisconn.Harmless(c.Err) {
		return false
	}
	t.Sent = max(t.Sent, c.At.Mono)
	t.Tainted = t.Tainted || c.Err != nil
	return c.Err == nil
}

// Collect evaluates the acquires that no call waits for, and takes back those that were never sent. It reports whether
// Redis may hold, or come to hold, the lock for this tenure.
func (t *Tenure) Collect() bool {
	open := t.pending[:0]
	for _, c := range t.pending {
		switch {
		case c.Answered():
			t.is.Take(c)
		case !c.Leave():
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
	if !t.Collect() {
		return
	}
	u := t.ending(t.ends(), nil)
	u.Due, u.Grace = t.Conn.Env.Now().Mono, true // a server that stands still executes an acquire later
	if len(t.pending) > 0 {
		// An answer that is about to come makes the tombstone, or the whole command, unnecessary.
		u.Due += timing.Patience(t.TTL)
	}
	open := slices.Clone(t.pending) // from now on t is the cleanup's
	u.open.Store(int32(len(open)))
	t.Conn.Clean(u.lock, u, false)
	for _, c := range open {
		c.After(func() {
			if u.open.Add(-1) == 0 {
				redisconn.Hurry(u)
			}
		})
	}
}

// An Outcome of a release.
type Outcome int

const (
	Released Outcome = iota
	Lost             // the tenure had ended without a release
	Unknown          // Redis did not confirm
)

var errForgotten = errors.New("a release went unanswered, and Redis has no record of it")

// Release frees the lock, whether or not Redis still has it as ours, and waits for the outcome until limit has passed or
// ctx ends. If Redis fails to answer, that goes on in the background, for lasting in all. Together with Unknown it
// returns the last failure.
func (t *Tenure) Release(ctx context.Context, limit, lasting time.Duration) (Outcome, error) {
	env := t.Conn.Env
	if ctx.Err() != nil {
		ctx, limit = context.WithoutCancel(ctx), min(limit, ReleaseGrace)
	}
	if !t.Collect() {
		return Released, nil // the acquires turned out to have changed nothing
	}
	end := env.Now().Mono + limit
	patience := min(timing.Patience(t.TTL), limit)
	c := t.releasing()
	t.Conn.Do(ctx, c, min(patience, until(ctx)))
	if c.Done != nil && env.Await(ctx, patience, c.Done) == 0 { // Done is nil if it was run on this goroutine
		c.Recycle()
	}
	cause := redisconn.ErrSilence
	if c.Answered() {
		if cause = c.Err; cause == nil {
			return released(c.Val, false)
		}
		if redisconn.Permanent(cause) {
			return Unknown, cause
		}
	}
	told := make(chan result, 1)
	u := t.ending(env.Now().Mono+lasting, func(o Outcome, cause error) { told <- result{o, cause} })
	if u.Due = env.Now().Mono; cause == redisconn.ErrSilence {
		u.resent = !c.Leave()
	} else {
		u.resent = !redisconn.Harmless(cause)
		u.Due += firstPause
	}
	t.Conn.Clean(u.lock, u, false)
	timer := env.Timers.Get(end - env.Now().Mono)
	defer env.Timers.Rest(timer)
	select {
	case r := <-told:
		return r.outcome, r.cause
	case <-ctx.Done():
	case <-timer.C:
	}
	return Unknown, cause
}

// firstPause is how long a release that failed waits before it is sent again.
const firstPause = 10 * time.Millisecond

type result struct {
	outcome Outcome
	cause   error
}

// until returns how long ctx lasts.
func until(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end)
	}
	return timing.Forever
}

// Pass is Release for a caller that goes on. It calls told, once, when the outcome is known or limit has passed. told may
// be nil, and limit 0 for none.
func (t *Tenure) Pass(limit, lasting time.Duration, told func(Outcome, error)) {
	_ = t.Collect() // evaluates answers that came meanwhile; that there is a lock is known
	now := t.Conn.Env.Now().Mono
	u := t.ending(now+lasting, told)
	u.Due = now
	if told != nil && limit > 0 {
		u.Limit = now + limit
	}
	t.Conn.Clean(u.lock, u, true)
}

// releasing returns a release to be sent.
func (t *Tenure) releasing() *redisconn.Call {
	c := &redisconn.Call{Number: t.Token, Class: redisconn.Frees, Lasting: true} // a copy: Token may change while c is under way
	return t.free(c, &t.Names, &t.ID, t.Tainted || len(t.pending) > 0)
}

func (t *Tenure) free(c *redisconn.Call, names *protocol.Names, id *string, tainted bool) *redisconn.Call {
	if t.Waiter != nil {
		return c.Set(protocol.Yield(c.Buf[:0], names, id, &c.Number, tainted, *t.Waiter))
	}
	return c.Set(protocol.Forget(c.Buf[:0], names, id, &c.Number, tainted))
}

// ending is the end of a tenure, as a cleanup. It keeps the tenure only while acquires of it may still be answered, as
// there can be many endings while Redis does not answer.
type ending struct {
	redisconn.Schedule
	tenure   *Tenure      // nil once the rest is all that is needed of it
	open     atomic.Int32 // acquires that may still be answered
	conn     *redisconn.Conn
	lock, id string
	waiter   *string
	token    int64
	tainted  bool
	resent   bool   // a release went out and was not answered
	admits   string // as in Names
	told     func(Outcome, error)
	cause    error // why Redis has not confirmed
}

// ending returns the end of t, which goes on until until.
func (t *Tenure) ending(until time.Duration, told func(Outcome, error)) *ending {
	u := &ending{tenure: t, conn: t.Conn, lock: t.Names.Lock, admits: t.Names.Admits, told: told}
	u.Until, u.Patience = until, timing.Patience(t.TTL)
	return u
}

// When returns when to end it.
func (u *ending) When() *redisconn.Schedule { return &u.Schedule }

// Begin makes c a release.
func (u *ending) Begin(c *redisconn.Call) bool {
	if t := u.tenure; t != nil {
		if !t.Collect() {
			u.tell(Released, nil)
			return false
		}
		if u.Grace {
			u.Until = t.ends()
		}
		u.token, u.tainted, u.waiter = t.Token, t.Tainted || len(t.pending) > 0, t.Waiter
		if u.id == "" {
			u.id = strings.Clone(t.ID) // it is a piece of the string with all names
		}
		if len(t.pending) == 0 {
			u.tenure = nil
		}
	}
	names, _ := protocol.NameKeys(u.lock)
	names.Gone = names.Tombstone(u.id)
	names.Admits = u.admits
	t := Tenure{Names: names, ID: u.id, Waiter: u.waiter}
	c.Number = u.token
	t.free(c, &t.Names, &t.ID, u.tainted)
	return true
}

// End evaluates an answer.
func (u *ending) End(c *redisconn.Call) bool {
	if c.Err == nil {
		u.tell(released(c.Val, u.resent))
		return true
	}
	u.cause = c.Err
	if !redisconn.Harmless(c.Err) {
		u.resent = true
	}
	if redisconn.Permanent(c.Err) {
		u.tell(Unknown, c.Err)
		return true
	}
	return false
}

// Unheard notes that a release may have been carried out.
func (u *ending) Unheard() { u.resent = true }

// Drop tells that the outcome is not known.
func (u *ending) Drop() {
	if u.cause == nil {
		u.cause = redisconn.ErrSilence
	}
	u.tell(Unknown, u.cause)
}

func (u *ending) tell(o Outcome, cause error) {
	if told := u.told; told != nil {
		u.told = nil
		told(o, cause)
	}
}

// released returns what the answer to a release means. resent says that an earlier one may have been carried out.
func released(val any, resent bool) (Outcome, error) {
	r, ok := protocol.ReadForgotten(val)
	switch {
	case !ok:
		return Unknown, protocol.ErrReply
	case r == protocol.Released, r == protocol.Already && resent:
		return Released, nil
	case r == protocol.Unknown && resent: // an earlier one may have freed it before the fence was forgotten
		return Unknown, errForgotten
	}
	// If the tenure was released before, it was not by us: the server fell back to a state from before this tenure, and
	// another tenure has come since.
	return Lost, nil
}
