package core

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"time"
)

var (
	errReply     = errors.New("unexpected reply")
	errExhausted = errors.New("fencing tokens have reached 2^53")
	errForgotten = errors.New("an unanswered release, and no record of it")
	errLate      = errors.New("the answer came after the lease had ended")
)

const (
	// fenceLife is how long a fence outlives the lease, so that a resent release finds how its tenure
	// ended. In ms.
	fenceLife = 60_000
	// tombstoneLife covers the time a command can be under way after its sender gave up on it: go-redis'
	// write timeout and the kernel's retransmissions on an orphaned connection. In ms.
	tombstoneLife = 60_000
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
	node  *node
	owner string
	ttl   time.Duration
	key   string

	// The arguments of its scripts, boxed once. lease and life are in ms, life is the fence's.
	lock, fence, gone, id, lease, life any

	token   int64         // 0 until granted
	sent    time.Duration // when the latest acquire that may have taken effect went out
	tainted bool          // rule 3: an acquire failed in a way that leaves its outcome open
	pending []*call       // acquires that nobody listens to any more and that may still be answered
	resent  bool          // a forget went out and was not answered
}

func newTenure(n *node, names names, label string, ttl time.Duration) *tenure {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, crashes the program instead
	owner := base64.RawURLEncoding.EncodeToString(id[:])
	if label != "" {
		// Behind the random part: some lock libraries compare only the beginning of a value with theirs,
		// and a label may be somebody's whole value.
		owner += ":" + label
	}
	return &tenure{
		node: n, owner: owner, ttl: ttl, key: names.lock,
		lock: names.lock, fence: names.fence, gone: names.tombstone(owner), id: owner,
		lease: ttl.Milliseconds(), life: ttl.Milliseconds() + fenceLife,
	}
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

// acquire sends one acquire.
func (t *tenure) acquire(ctx context.Context) *call {
	return t.node.start(ctx, acquireScript, t.lock, t.fence, t.gone, t.id, t.lease, t.life)
}

// verdict is what an answered acquire means.
type verdict struct {
	granted bool
	held    *HeldError
	err     error // neither: cannot know
}

// read takes an answered acquire into account.
func (t *tenure) read(c *call) verdict {
	if c.err != nil && harmless(c.err) {
		return verdict{err: c.err}
	}
	t.sent = max(t.sent, c.at.mono)
	if c.err != nil {
		t.tainted = true
		return verdict{err: c.err}
	}
	switch r := c.val.(type) {
	case int64:
		switch {
		case r > 0:
			t.token = r
			return verdict{granted: true}
		case r == acquireExhausted:
			return verdict{err: errExhausted}
		}
	case []any:
		if len(r) == 3 && r[0] == int64(acquireHeld) {
			left, ok1 := r[1].(int64)
			value, ok2 := r[2].(string)
			if ok1 && ok2 {
				return verdict{held: newHeldError(t.key, left, value)}
			}
		}
	}
	t.tainted = true
	return verdict{err: errReply}
}

func newHeldError(key string, left int64, value string) *HeldError {
	h := &HeldError{Key: key, Label: labelOf(value)}
	if left >= 0 {
		h.TimeLeft = time.Duration(max(left, 1)) * time.Millisecond
	}
	return h
}

// leave stops listening to an acquire.
func (t *tenure) leave(c *call) { t.pending = append(t.pending, c) }

// last is when the lease of the latest acquire that may have taken effect ends at the latest.
func (t *tenure) last() time.Duration {
	sent := t.sent
	for _, c := range t.pending {
		sent = max(sent, c.at.mono)
	}
	return sent + t.ttl
}

// settle looks at the acquires nobody listens to and reports whether Redis may hold, or come to hold, the
// lock for this tenure.
func (t *tenure) settle() bool {
	open := t.pending[:0]
	for _, c := range t.pending {
		select {
		case <-c.done:
			t.read(c)
		default:
			open = append(open, c)
		}
	}
	t.pending = open
	return t.token > 0 || t.tainted || len(open) > 0
}

// undo ends a tenure that nobody will use, in the background where Redis must be told.
func (t *tenure) undo() {
	if !t.settle() {
		return
	}
	t.node.gate.join()
	go func() {
		defer t.node.gate.leave()
		// An answer that is about to come makes the tombstone, or the whole command, needless.
		ctx, cancel := context.WithTimeout(context.Background(), patience(t.ttl))
		defer cancel()
		for _, c := range t.pending {
			select {
			case <-c.done:
			case <-ctx.Done():
			}
		}
		if t.settle() {
			// Once the last acquire's lease has run out there is nothing left to undo.
			_, _ = t.forget(t.node.gate.over, t.last()-t.node.clock.now().mono)
		}
	}()
}

// forget releases, whether or not Redis still has the lock as ours, and waits for the answer for at most
// limit or until ctx ends. It returns ErrLost or ErrUnavailable, with the last failure behind it, where it
// did not free the lock.
func (t *tenure) forget(ctx context.Context, limit time.Duration) (outcome, cause error) {
	now := t.node.clock.now
	end := now().mono + limit
	done := ctx.Done()
	if ctx.Err() != nil {
		done = nil
		end = now().mono + min(limit, releaseGrace)
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	timer := t.node.timer(0)
	defer t.node.rest(timer)

	cause = errSilence
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if !t.settle() {
			return nil, nil // the acquires turned out to have changed nothing
		}
		life := 0
		if t.tainted || len(t.pending) > 0 {
			life = tombstoneLife
		}
		c := t.node.start(ctx, forgetScript, t.lock, t.fence, t.gone, t.id, t.token, fenceLife, life)
		timer.Reset(min(patience(t.ttl), end-now().mono))
		select {
		case <-c.done:
			if c.err == nil {
				return t.forgot(c.val)
			}
			cause = c.err
			t.resent = t.resent || !harmless(c.err)
			if permanent(c.err) {
				return ErrUnavailable, cause
			}
			timer.Reset(min(pause, end-now().mono))
			select {
			case <-done:
				return ErrUnavailable, cause
			case <-timer.C:
			}
		case <-done:
			t.resent = true
			return ErrUnavailable, cause
		case <-timer.C:
			t.resent = true
		}
		if now().mono >= end {
			return ErrUnavailable, cause
		}
	}
}

func (t *tenure) forgot(val any) (outcome, cause error) {
	switch val {
	case int64(forgetReleased):
		return nil, nil
	case int64(forgetAlready):
		if t.resent {
			return nil, nil
		}
		// Not by us: the server fell back to a state from before this tenure, and another one came since.
		return ErrLost, nil
	case int64(forgetLost):
		return ErrLost, nil
	case int64(forgetUnknown):
		if t.resent { // an earlier one may have freed it before the fence was forgotten
			return ErrUnavailable, errForgotten
		}
		return ErrLost, nil
	}
	return ErrUnavailable, errReply
}
