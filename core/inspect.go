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

// State is what Redis says about a lock at one moment. Fields without a comment are as in a [HeldError].
type State struct {
	Key      string // as stored, prefix included
	Held     bool
	Label    string
	TimeLeft time.Duration
	Holders  int

	// Limit is the smallest limit of the holders; 0 if all of them are readers, or if nobody holds the lock.
	Limit int

	// Token is the fencing token of the holder: of several the latest, of calls that handed the lock to each other within a
	// process the first. If nobody holds the lock, it is the largest token so far, issued or reserved. It is 0 for a holder
	// without holdfast, and may be 0 later than a TTL and a minute after the acquisition.
	Token int64

	// Waiting is how many waiters stand in line in Redis, at most: some may be gone already. Most calls of a process wait
	// behind those, see WithLocalHandover.
	Waiting int

	// Shares is how many names those waiters have, if any has one: see WithShare. Waiters without a name count as one more.
	Shares int

	// WaitingHere is how many calls of this Locker want the lock, as far as the Locker knows.
	Here        bool
	WaitingHere int
}

// Inspect reports who holds a lock, for humans and monitoring: the answer may be outdated by the time it returns. key
// is as Acquire takes it, without the prefix. Inspect returns within ctx and the patience of [WithTTL].
//
// Errors: [ErrUnavailable], [ErrClosed], [ErrInvalid].
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	states, errs := l.look(ctx, protocol.Inspect, []string{key}, redisconn.NewSweep())
	if errs[0] != nil {
		return State{}, errs[0]
	}
	return states[0], nil
}

// InspectAll is [Locker.Inspect] for many keys: it yields one pair for each, in the order of keys. It asks in pipelines
// of up to 128 keys while the caller ranges over the result. An error concerns its key alone; the State next to it
// still has its Key. After a server has not answered, the remaining keys that need it fail at once.
//
// Together the States are no snapshot: a lock that moves from one key to another may be seen on both or on neither. To
// decide on anything, acquire the lock.
func (l *Locker) InspectAll(ctx context.Context, keys ...string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		sweep := redisconn.NewSweep()
		for batch := range slices.Chunk(keys, batchSize) {
			states, errs := l.look(ctx, protocol.Inspect, batch, sweep)
			for i := range batch {
				if !yield(states[i], errs[i]) {
					return
				}
			}
		}
	}
}

// batchSize is how many keys are asked about together.
const batchSize = 128

// look asks about keys. It holds the gate for no longer than that: a caller may take its time between two.
func (l *Locker) look(ctx context.Context, ask protocol.Question, keys []string, sweep *redisconn.Sweep) ([]State, []error) {
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
			calls = l.store.Inspect(ctx, ask, names, l.cfg.ttl, sweep)
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
			fail.cause = err
		case ok:
			state.Here, state.WaitingHere = l.turns.here(state.Key)
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
	s = State{Key: key, Held: r.Left != protocol.Free, Label: protocol.LabelOf(r.Value), Token: r.Token, Waiting: int(r.Waiting), Shares: int(r.Shares)}
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
