package holdfast

import (
	"context"
	"iter"
	"slices"
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

	// TimeLeft is what the holder's lease has left, of several the lease that ends first; 0 if nobody holds the lock, or the key
	// never expires.
	TimeLeft time.Duration

	// Holders is how many hold the lock: 1, or more with WithLimit or WithShared, and then there is no Label. Readers of one
	// process that share an acquisition are one. Limit is the least of their limits: 0 of readers, and where nobody holds the
	// lock.
	Holders, Limit int

	// Token is the fencing token of the holder, of several that of the latest. If holders of one process passed the lock on
	// among themselves, it is the token of the first of them. Where nobody holds the lock it is the largest token ever
	// issued or reserved. It is 0 for a foreign holder, and where none is remembered: Redis forgets it a TTL and a minute
	// after the acquisition, however long the lock is held.
	Token int64

	// Waiting is how many wait in line for the lock, at most: one for each process, as the others queue behind that
	// one, or with WithLocalHandover(0, d) each call; and some may be gone.
	Waiting int

	// Here tells that a call of this very Locker holds the lock, as in a [HeldError], and WaitingHere how many of its calls
	// want it. With WithLocalHandover(0, d) they tell nothing.
	Here        bool
	WaitingHere int
}

// Inspect asks for the holder of a lock, for people and monitoring. key is as Acquire takes it, without the prefix. The
// answer may be old when it returns. It returns within ctx and within a quarter of the Locker's TTL, at most 1 s.
//
// Errors: [ErrUnavailable] (matching ctx.Err() where that ended it), [ErrClosed], [ErrInvalid].
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	states, errs := l.look(ctx, []string{key}, redisconn.NewSweep())
	if errs[0] != nil {
		return State{}, errs[0]
	}
	return states[0], nil
}

// InspectAll is [Locker.Inspect] for many keys: it asks in pipelines, one for each server and up to 128 keys, one after the
// other while the caller ranges over the result. It yields one pair for each key, in the order of keys; beside an error, the
// State still has its Key. An error is about that key alone, of the kinds that Inspect returns; the others may be fine.
//
// Each State is what one server (or with [NewRedLock] most of them) said of one key at one moment. All of them together
// are no snapshot: those of a pipeline are some milliseconds apart, pipelines a round trip and whatever the caller does
// between them, so that a lock which moves from one key to another may be seen on both or on neither. To decide
// on anything, acquire.
//
// A server that does not answer within a quarter of the Locker's TTL, at most 1 s (with NewRedLock within the node timeout),
// or cannot be reached, is not asked for the remaining keys: those that need it fail at once, so that an outage is waited for
// once, and not once per pipeline.
func (l *Locker) InspectAll(ctx context.Context, keys ...string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		sweep := redisconn.NewSweep()
		for batch := range slices.Chunk(keys, batchSize) {
			states, errs := l.look(ctx, batch, sweep)
			for i := range batch {
				if !yield(states[i], errs[i]) {
					return
				}
			}
		}
	}
}

// look asks about keys. It holds the gate for no longer than that: a caller may take its time between two.
func (l *Locker) look(ctx context.Context, keys []string, sweep *redisconn.Sweep) ([]State, []error) {
	states, errs := make([]State, len(keys)), make([]error, len(keys))
	var names []protocol.Names
	var of []int // the key of each name
	for i, key := range keys {
		states[i].Key = l.cfg.prefix + key
		n, err := nameKeys(states[i].Key)
		switch {
		case ctx == nil:
			err = invalid("nil context")
		case key == "":
			err = invalid("empty key")
		}
		if errs[i] = err; err == nil {
			names, of = append(names, n), append(of, i)
		}
	}
	if len(of) == 0 {
		return states, errs
	}
	outcome, calls := ErrClosed, []*redisconn.Call(nil)
	ctx = inTime(ctx)
	if l.env.Gate.Enter() {
		defer l.env.Gate.Leave()
		outcome = ErrUnavailable
		if ctx.Err() == nil {
			calls = l.store.Inspect(ctx, names, l.cfg.ttl, sweep)
		}
	}
	for k, i := range of {
		fail := &opError{act: "inspect", key: states[i].Key, outcome: outcome}
		errs[i] = fail
		if outcome == ErrUnavailable {
			fail.context = ctx.Err()
		}
		if calls == nil {
			continue
		}
		state, ok := newState(states[i].Key, calls[k].Val)
		switch err := calls[k].Err; {
		case err != nil:
			fail.cause = public(err)
		case ok:
			state.Here, state.WaitingHere = l.queues.here(state.Key)
			states[i], errs[i] = state, nil
		case calls[k].Val != nil:
			fail.cause = protocol.ErrReply
		case fail.context == nil:
			fail.cause = redisconn.ErrSilence
		}
	}
	return states, errs
}

// newState is what a reply of inspect.lua tells of a key.
func newState(key string, val any) (s State, ok bool) {
	r, ok := protocol.ReadInspected(val)
	if !ok {
		return State{}, false
	}
	s = State{Key: key, Held: r.Left != protocol.Free, Label: protocol.LabelOf(r.Value), Token: r.Token, Waiting: int(r.Waiting)}
	switch {
	case !s.Held:
	case r.Holders == 0:
		s.Holders, s.Limit = 1, 1
	default:
		s.Holders, s.Limit = int(r.Holders), int(r.Limit)
	}
	if s.Limit == protocol.NoLimit {
		s.Limit = 0
	}
	if r.Left > 0 {
		s.TimeLeft = timing.Millis(r.Left)
	}
	return s, true
}
