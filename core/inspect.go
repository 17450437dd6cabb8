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

// State is what Redis says about a lock at one moment.
type State struct {
	Key   string // as stored, prefix included
	Held  bool
	Label string // of the holder; empty in the same cases as that of a HeldError

	// TimeLeft is what is left of the holder's lease; of several holders, of the lease that expires first. It is 0 if
	// nobody holds the lock, or if its key never expires.
	TimeLeft time.Duration

	// Holders is how many hold the lock: more than 1 only with WithLimit or WithShared. Readers of one process that share
	// an acquisition count as one. Limit is the smallest limit of the holders; 0 if all of them are readers, or if nobody
	// holds the lock.
	Holders, Limit int

	// Token is the fencing token of the holder, of several holders the latest. If calls of one process handed the lock to
	// each other, it is the token of the first of them. If nobody holds the lock, it is the largest token issued or
	// reserved so far. It is 0 for a holder that does not use holdfast, and if Redis has forgotten it, which it does a
	// TTL and a minute after the acquisition, however long the lock is held.
	Token int64

	// Waiting is how many waiters stand in line in Redis, at most: some may be gone already. A process counts once,
	// because its other calls queue behind that one. On one Redis with WithLocalHandover(0, d), each call counts.
	Waiting int

	// Here reports that a call of this Locker holds the lock, as in a [HeldError]. WaitingHere is how many of its calls
	// want it. They may be false and 0 all the same with WithLocalHandover(0, d).
	Here        bool
	WaitingHere int
}

// Inspect reports who holds a lock, for humans and monitoring. key is as Acquire takes it, without the prefix. The answer
// may be outdated by the time it returns. Inspect returns within ctx and within a quarter of the Locker's TTL, at most 1
// s.
//
// Errors: [ErrUnavailable], which matches ctx.Err() too if that ended the call, [ErrClosed], [ErrInvalid].
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	states, errs := l.look(ctx, []string{key}, redisconn.NewSweep())
	if errs[0] != nil {
		return State{}, errs[0]
	}
	return states[0], nil
}

// InspectAll is [Locker.Inspect] for many keys. It asks in pipelines of up to 128 keys to each server, one after the
// other while the caller ranges over the result, and yields one pair for each key, in the order of keys. An error is of
// the kinds that Inspect returns and concerns that key alone; the State next to it still has its Key.
//
// Each State is what a server, or with [NewRedLock] most of the masters, said about one key at one moment. Together they
// are not a snapshot: answers of one pipeline are milliseconds apart, and pipelines as far apart as the caller ranges
// over them. So a lock that moves from one key to another may be seen on both or on neither. To decide on anything,
// acquire the lock.
//
// A server that does not answer within a quarter of the Locker's TTL, at most 1 s (with NewRedLock within the node
// timeout), or cannot be reached, is not asked again: the remaining keys that need it fail at once. So an outage is
// waited for once.
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
