package core

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

var (
	errReply     = errors.New("unexpected reply")
	errExhausted = errors.New("fencing tokens have reached 2^53")
	errForgotten = errors.New("an unanswered release, and no record of it")
	errLate      = errors.New("the answer came after the lease had ended")
)

const (
	// grantLease is what a lease that is granted to somebody in line begins with, where the TTL is longer: it is
	// renewed as soon as the grant was noticed, and costs the others little where it never is.
	grantLease = 3 * time.Second
	// lookAgain is how long one in line waits between two looks at most, with which it also shows that it is
	// alive; protocol.EntryLife is how long it is believed after one: two looks may fail.
	lookAgain = 2 * time.Second
	// releaseGrace is how long Release waits for Redis when its context has ended already: long enough for
	// one round trip, so that a deferred Release after a cancelled request still reports what happened.
	releaseGrace = 20 * time.Millisecond
)

// tenure is one server-side ownership of a lock, from the first acquire that is sent until it is forgotten.
// Three rules make lost, resent and delayed commands harmless:
//
//  1. The owner id names this tenure alone. Once a forget was sent no acquire is sent under it any more, so
//     that no late command of this tenure can act on another.
//  2. No script lowers a time to live: a late renewal cannot cut a lease that was extended since.
//  3. If the outcome of any acquire is unknown when the tenure ends, forget also leaves a tombstone: an
//     acquire that is still on its way finds it and does nothing.
type tenure struct {
	stake
	node *node

	key any // names.Lock; go-redis takes the other arguments by pointer, which costs no allocation

	tainted bool              // rule 3: an acquire failed in a way that leaves its outcome open
	pending []*redisconn.Call // acquires that nobody listens to any more and that may still be answered
	resent  bool              // a forget went out and was not answered

	// Of one of a ballot's.
	renewals int    // that were not answered
	waiter   string // see forget.lua

	// Room for what most tenures need one of, so that it takes no allocation each; nil when it was used.
	room  *redisconn.Call
	seat  *hold
	front *queue

	// Of the latest look that found the lock held elsewhere.
	look timing.Instant // when it was sent
	seen int64          // the server's TIME at it, in µs
	last int64          // the last token issued then

	wake   chan struct{}  // capacity 1; told of pushed
	pushed protocol.Grant // the latest that the inbox received; guarded by its mutex, as the setting of wake is
}

// newOwner is the random part of an owner id, and what separates it from the label behind it: some lock libraries compare
// only the beginning of a value with theirs, and a label may be somebody's whole value.
func newOwner(label string) (random [22]byte, colon string) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, crashes the program instead
	base64.RawURLEncoding.Encode(random[:], id[:])
	if label != "" {
		colon = ":"
	}
	return random, colon
}

// init makes t a tenure of its own: of the owner that names has, or else a new one.
func (t *tenure) init(n *node, names protocol.Names, cfg *config, block int) {
	if names.Gone == "" {
		random, colon := newOwner(cfg.label)
		names.Gone = names.Tombstone(string(random[:]) + colon + cfg.label)
	}
	if cfg.reentryID != "" {
		names.Enter()
	}
	t.node, t.key = n, names.Lock
	t.stake = stake{
		owner: names.Owner(), cfg: cfg, block: block, names: names,
	}
}

func (n *node) own(names protocol.Names, cfg *config, block int) ownership {
	all := new(struct {
		tenure
		hold
		queue
	})
	all.tenure.init(n, names, cfg, block)
	all.seat, all.front = &all.hold, &all.queue
	return &all.tenure
}

// labelOf takes the label out of a lock's value, if it has the form of ours: anybody can write values.
func labelOf(value string) string {
	random, label, ok := strings.Cut(value, ":")
	if !ok || !validLabel(label) {
		return ""
	}
	if id, err := base64.RawURLEncoding.DecodeString(random); err != nil || len(id) != 16 {
		return ""
	}
	return label
}

// acquire sends one acquire. With waits it also joins the line, or refreshes its place in it; told says whether
// the inbox can be used for that.
func (t *tenure) acquire(ctx context.Context, waits bool) (c *redisconn.Call, told bool) {
	told = waits && t.node.inbox.add(t)
	return t.send(ctx, waits, told), told
}

func (t *tenure) send(ctx context.Context, waits, told bool) *redisconn.Call {
	c := t.call()
	plan := t.node.plan(planFor{t.cfg.ttl, t.block, waits, told})
	return t.node.Send(ctx, c.Set(protocol.Acquire(c.Room[:0], t.key, &t.names, &t.owner, plan, &t.cfg.reentryID)))
}

// call is where the next command goes.
func (t *tenure) call() *redisconn.Call {
	c := t.room
	t.room = nil
	if c == nil {
		c = new(redisconn.Call)
	}
	c.Urgent = len(t.pending) > 0 || t.resent
	return c
}

// renew asks for a lease, at once: it is for a holder that may be about to lose the lock.
func (t *tenure) renew(ctx context.Context, lease time.Duration) *redisconn.Call {
	c := t.renewal(lease)
	c.Urgent = true
	return t.node.Send(ctx, c)
}

// renewal is a call that lengthens the lease to d.
func (t *tenure) renewal(d time.Duration) *redisconn.Call {
	c := &redisconn.Call{Ctx: context.Background(), Number: d.Milliseconds()}
	return c.Set(protocol.Renew(c.Room[:0], t.key, &t.names, &t.owner, &c.Number))
}

// planFor is what the second argument of acquire.lua depends on.
type planFor struct {
	ttl   time.Duration
	block int
	waits bool
	told  bool
}

// plan is that argument. A Locker needs few of them and keeps them.
func (n *node) plan(p planFor) *string {
	n.plansMu.RLock()
	s := n.plans[p]
	n.plansMu.RUnlock()
	if s != nil {
		return s
	}
	var wait *protocol.Waiting
	if p.waits {
		wait = &protocol.Waiting{First: min(p.ttl, grantLease), Counted: n.inbox.counted}
		if p.told {
			wait.Inbox = n.inbox.channel
		}
	}
	text := protocol.AcquirePlan(p.ttl, p.block, wait)
	n.plansMu.Lock()
	defer n.plansMu.Unlock()
	if n.plans == nil || len(n.plans) >= 100 {
		n.plans = map[planFor]*string{}
	}
	n.plans[p] = &text
	return &text
}

func (s *stake) firstLease() time.Duration { return min(s.cfg.ttl, grantLease) }

// verdict is what an answered acquire means.
type verdict struct {
	token   int64 // granted, with this one or the first of a block; else 0
	held    *HeldError
	place   int   // with held: in line, 1 is the first; 0 outside
	foreign bool  // with held: surely not by holdfast
	deaf    bool  // with held: this one will not be told, though its inbox is open
	split   bool  // with held: between those who ask, so that nobody has it
	err     error // neither: cannot know

	errs []error // of single masters, for those who watch
}

// read takes an answered acquire into account.
func (t *tenure) read(c *redisconn.Call) verdict {
	if t.node.votes {
		t.readVote(c)
		return verdict{}
	}
	if c.Err != nil && redisconn.Harmless(c.Err) {
		return verdict{err: c.Err}
	}
	t.sent = max(t.sent, c.At.Mono)
	if c.Err != nil {
		t.tainted = true
		return verdict{err: c.Err}
	}
	r, ok := protocol.ReadAcquired(c.Val)
	switch {
	case !ok, r.Undone: // which only ever answers an acquire that nobody waits for
	case r.Exhausted:
		return verdict{err: errExhausted}
	case r.Held:
		t.inLine, t.look, t.seen, t.last = r.Place > 0, c.At, r.Time, r.Last
		if r.Place > 0 {
			t.node.inbox.answered(c.At, r.Deaf)
		}
		return verdict{
			held: newHeldError(t.names.Lock, r.Left, r.Value), place: r.Place, foreign: r.Foreign, deaf: r.Deaf != protocol.Hears,
		}
	default:
		if t.token == 0 { // or it may be the late answer of an older one, which got another token and lost it
			t.token = r.Token
		}
		return verdict{token: r.Token}
	}
	t.tainted = true
	return verdict{err: errReply}
}

// hold takes the token of a grant that was just heard of: the lease of an earlier one, with another token, may have
// ended while nobody could listen.
func (s *stake) hold(token int64) {
	if token != s.token {
		s.token, s.handed = token, 0
	}
}

func (t *tenure) accept(now timing.Instant) (at timing.Instant, ok bool) {
	return t.judge(t.node.inbox.take(t), now)
}

// judge looks at a grant that the inbox received: whether the tenure can rely on it, and if so from when on its
// first lease is to be counted.
//
// Redis made the grant at g.Time by its clock, and answered our latest look at t.seen; that look was sent before,
// at t.look by ours. So the lease began at t.look + (g.Time - t.seen) or later, but for the difference in
// speed of two clocks. Where more time has passed there than here, one of them was set or stood still, and
// only a new look can tell. The same goes for a grant that is not newer than the look, by its token or, where Redis
// has forgotten the tokens, its time: then we held the lock and lost it in between, and have joined the line again.
func (t *tenure) judge(g protocol.Grant, now timing.Instant) (at timing.Instant, ok bool) {
	span := time.Duration(g.Time-t.seen) * time.Microsecond
	passed := now.Mono - t.look.Mono
	drift := max(0, span/100)
	if t.seen == 0 || g.Token <= t.last || span < 0 || span > passed+drift+2*time.Millisecond {
		return timing.Instant{}, false
	}
	span = min(span, passed) - drift
	t.hold(g.Token)
	return timing.Instant{Mono: t.look.Mono + span, Wall: t.look.Wall + int64(span)}, true
}

func newHeldError(key string, left int64, value string) *HeldError {
	h := &HeldError{Key: key, Label: labelOf(value)}
	if left >= 0 {
		h.TimeLeft = timing.Millis(max(left, 1))
	}
	return h
}

func (t *tenure) waker() <-chan struct{} { return t.node.inbox.waker(t) }

func (t *tenure) onward() bool { return t.inLine || t.token > 0 }

func (t *tenure) over() { t.node.inbox.remove(t) }

// lost has nothing to do: no renewal brings back what one server has forgotten.
func (t *tenure) lost(time.Duration) {}

func (t *tenure) patience() time.Duration { return timing.Patience(t.cfg.ttl) }

func (t *tenure) allowance() time.Duration { return timing.Patience(t.cfg.ttl) }

// leave stops listening to an acquire.
func (t *tenure) leave(c *redisconn.Call) {
	c.Leave()
	t.pending = append(t.pending, c)
}

// ends is when what the latest acquire may have brought about ends at the latest: its lease, or its place in line
// and the lease of a grant.
func (t *tenure) ends() time.Duration {
	sent := t.sent
	for _, c := range t.pending {
		sent = max(sent, c.At.Mono)
	}
	return sent + max(t.cfg.ttl, protocol.EntryLife+grantLease)
}

// settle looks at the acquires nobody listens to and reports whether Redis may hold, or come to hold, the
// lock for this tenure.
func (t *tenure) settle() bool {
	open := t.pending[:0]
	for _, c := range t.pending {
		if c.Answered() {
			t.read(c)
		} else {
			open = append(open, c)
		}
	}
	t.pending = open
	return t.token > 0 || t.inLine || t.tainted || len(open) > 0
}
