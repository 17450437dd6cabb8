package core

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
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
	fail := &opError{act: "inspect", key: names.Lock, outcome: ErrUnavailable}
	if !l.gate.Enter() {
		fail.outcome = ErrClosed
		return State{}, fail
	}
	defer l.gate.Leave()

	timer := l.timers.Get(l.redis.patience(l.cfg.ttl))
	defer l.timers.Rest(timer)
	for try := 1; ; try++ {
		c := l.redis.inspect(ctx, names)
		select {
		case <-c.Done:
		case <-ctx.Done():
			fail.context = ctx.Err()
			return State{}, fail
		case <-timer.C:
			fail.cause = redisconn.ErrSilence
			return State{}, fail
		}
		if c.Err == nil {
			s, ok := newState(names.Lock, c.Val)
			if !ok {
				fail.cause = errReply
				return State{}, fail
			}
			return s, nil
		}
		if try == triesOfOne || permanent(c.Err) {
			fail.cause = c.Err
			fail.context = ctx.Err()
			return State{}, fail
		}
	}
}

// inspectable checks what Inspect and InspectAll are given.
func (l *Locker) inspectable(ctx context.Context, key string) (protocol.Names, error) {
	if ctx == nil {
		return protocol.Names{}, invalid("nil context")
	}
	if key == "" {
		return protocol.Names{}, invalid("empty key")
	}
	return nameKeys(l.cfg.prefix + key)
}

// newState is what a reply of inspect.lua tells of a key.
func newState(key string, val any) (s State, ok bool) {
	r, ok := protocol.ReadInspected(val)
	if !ok {
		return State{}, false
	}
	s = State{Key: key, Held: r.Left != protocol.Free, Label: labelOf(r.Value), Token: r.Token, Waiting: int(r.Waiting)}
	if r.Left > 0 {
		s.TimeLeft = timing.Millis(r.Left)
	}
	return s, true
}

func (n *node) inspect(ctx context.Context, names protocol.Names) *redisconn.Call {
	c := new(redisconn.Call)
	return n.Send(ctx, c.Set(protocol.Inspect(c.Room[:0], &names)))
}
