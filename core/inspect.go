package core

import (
	"context"
	"time"
)

// State is what Redis says of a lock at one moment.
type State struct {
	Key   string // as stored, prefix included
	Held  bool
	Label string // of the holder, see WithLabel; empty for foreign holders and without a label

	// TimeLeft is what the holder's lease has left; 0 if nobody holds the lock, or the key never expires.
	TimeLeft time.Duration

	// Token is the fencing token of the holder, or of one that it succeeded within its process, as those reserve a
	// block of them; the largest ever issued or reserved where nobody holds the lock. 0 if none is remembered: a
	// fence is forgotten a TTL and a minute after the acquisition, however long the lock is held, and a foreign
	// holder has none.
	Token int64

	// Waiting is how many wait in line for the lock, at most: one for each process, as the others queue behind that
	// one, and some may be gone.
	Waiting int
}

// Inspect asks who holds a lock, for people and monitoring: by the time it returns the answer may be old.
// It returns within ctx and within a quarter of the Locker's TTL, at most 1 s.
//
// Errors: [ErrUnavailable] (matching ctx.Err() where that ended it), [ErrClosed], [ErrInvalid].
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	names, err := l.inspectable(ctx, key)
	if err != nil {
		return State{}, err
	}
	fail := &opError{act: "inspect", key: names.lock, outcome: ErrUnavailable}
	if !l.gate.enter() {
		fail.outcome = ErrClosed
		return State{}, fail
	}
	defer l.gate.leave()

	timer := l.timers.get(l.redis.patience(l.cfg.ttl))
	defer l.timers.rest(timer)
	for try := 1; ; try++ {
		c := l.redis.inspect(ctx, names)
		select {
		case <-c.done:
		case <-ctx.Done():
			fail.context = ctx.Err()
			return State{}, fail
		case <-timer.C:
			fail.cause = errSilence
			return State{}, fail
		}
		if c.err == nil {
			s, ok := newState(names.lock, c.val)
			if !ok {
				fail.cause = errReply
				return State{}, fail
			}
			return s, nil
		}
		if try == triesOfOne || permanent(c.err) {
			fail.cause = c.err
			fail.context = ctx.Err()
			return State{}, fail
		}
	}
}

// inspectable checks what Inspect and InspectAll are given.
func (l *Locker) inspectable(ctx context.Context, key string) (names, error) {
	if ctx == nil {
		return names{}, invalid("nil context")
	}
	if key == "" {
		return names{}, invalid("empty key")
	}
	return nameKeys(l.cfg.prefix + key)
}

// newState is what a reply of inspect.lua tells of a key.
func newState(key string, val any) (s State, ok bool) {
	value, n, ok := readState(val)
	if !ok {
		return State{}, false
	}
	left := n[0]
	s = State{Key: key, Held: left != -2, Label: labelOf(value), Token: n[1], Waiting: int(n[2])}
	if left > 0 {
		s.TimeLeft = millis(left)
	}
	return s, true
}

// readState takes a reply of inspect.lua apart.
func readState(val any) (value string, n [3]int64, ok bool) {
	r, _ := val.([]any)
	if len(r) != 4 {
		return "", n, false
	}
	value, ok = r[0].(string)
	for i := range n {
		var number bool
		n[i], number = r[1+i].(int64)
		ok = ok && number
	}
	return value, n, ok
}

func (n *node) inspect(ctx context.Context, names names) *call {
	return n.start(ctx, new(call), inspectScript, names.lock, names.fence, names.line)
}
