package core

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
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
	states, errs := l.look(ctx, []string{key}, map[any]error{})
	return states[0], errs[0]
}

// InspectAll is [Locker.Inspect] for many keys: it asks in pipelines, one for each server and up to 128 keys, one
// after the other while the caller ranges over the result. It yields one pair for each key, in the order of keys, and the Key of a State beside an error too. An error is
// about that key alone, of the kinds that Inspect returns; the others may be fine.
//
// Each State is what one server (or with [NewRedLock] most of them) said of one key at one moment. All of them together
// are no snapshot: those of a pipeline are some milliseconds apart, pipelines a round trip and whatever the caller does
// between them, so that a lock which moves from one key to another may be seen on both or on neither. To decide
// on anything, acquire.
//
// A server that does not answer within a quarter of the Locker's TTL, at most 1 s (with NewRedLock within the node
// timeout), or cannot be reached, is not asked for the keys behind: what needs it fails at once, so that an outage is not
// waited for again with each pipeline.
func (l *Locker) InspectAll(ctx context.Context, keys ...string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		down := map[any]error{}
		for batch := range slices.Chunk(keys, batchSize) {
			states, errs := l.look(ctx, batch, down)
			for i := range batch {
				if !yield(states[i], errs[i]) {
					return
				}
			}
		}
	}
}

// inspection is one key that is asked about.
type inspection struct {
	i      int // in the order of keys
	names  protocol.Names
	server any
	call   *redisconn.Call
	fail   *opError
}

// look asks about keys at once, but not about those of a server in down, to which it adds those that it cannot reach. It
// holds the gate for no longer than that: a caller may take its time between two.
func (l *Locker) look(ctx context.Context, keys []string, down map[any]error) ([]State, []error) {
	states, errs := make([]State, len(keys)), make([]error, len(keys))
	var open []*inspection
	for i, key := range keys {
		states[i].Key = l.cfg.prefix + key
		names, err := l.inspectable(ctx, key)
		if errs[i] = err; err == nil {
			k := &inspection{i: i, names: names, fail: &opError{act: "inspect", key: names.Lock, outcome: ErrUnavailable}}
			open, errs[i] = append(open, k), k.fail
		}
	}
	if len(open) == 0 {
		return states, errs
	}
	if !l.env.Gate.Enter() {
		for _, k := range open {
			k.fail.outcome = ErrClosed
		}
		return states, errs
	}
	defer l.env.Gate.Leave()
	all, reached := slices.Clone(open), map[any]bool{}
	now := l.env.Now().Mono
	last, end := now+l.store.Patience(l.cfg.ttl), now+l.store.Allowance(l.cfg.ttl)
	for try := 1; try <= single.Tries && now < last && l.find(ctx, open, end); try++ {
		batches := map[any]redisconn.Batch{} // for each server one: a pipeline is through when all its servers are
		for _, k := range open {
			if k.fail.cause = down[k.server]; k.fail.cause != nil {
				continue
			}
			if batches[k.server] == nil {
				batches[k.server] = redisconn.Batch{}
			}
			k.call = l.store.Inspect(ctx, k.names, l.cfg.ttl, batches[k.server])
		}
		for _, batch := range batches {
			l.env.Go(batch.Run)
		}
		open = slices.DeleteFunc(open, func(k *inspection) bool {
			if k.call == nil {
				return true
			}
			if !k.call.Answered() {
				switch l.env.Await(ctx, k.call.Done, end-l.env.Now().Mono) {
				case timing.Ended:
					k.fail.context = ctx.Err()
					return true
				case timing.Elapsed:
					k.call.Leave()
					k.fail.cause = redisconn.ErrSilence
					return true
				}
			}
			state, ok := newState(k.names.Lock, k.call.Val)
			err := k.call.Err
			if err == nil && !ok {
				err = protocol.ErrReply
			}
			reached[k.server] = reached[k.server] || k.call.Err == nil || redisconn.ReplyText(err) != ""
			if err == nil {
				states[k.i], errs[k.i] = state, nil
				return true
			}
			k.fail.cause, k.fail.context = public(err), ctx.Err()
			return redisconn.Permanent(err)
		})
		now = l.env.Now().Mono
	}
	for _, k := range all {
		if !reached[k.server] && k.fail.context == nil && k.fail.cause != nil {
			down[k.server] = k.fail.cause
		}
	}
	return states, errs
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

// find has the server of each, and reports whether that can be told. A Cluster may have to be asked first.
func (l *Locker) find(ctx context.Context, open []*inspection, end time.Duration) bool {
	if !l.store.Many() || l.store.Several() {
		return true
	}
	servers, done := make([]any, len(open)), make(chan struct{})
	l.env.Go(func() {
		for i, k := range open {
			servers[i] = l.store.server(ctx, k.names.Lock)
		}
		close(done)
	})
	known := l.env.Await(ctx, done, end-l.env.Now().Mono) == timing.Told
	for i, k := range open {
		if known {
			k.server = servers[i]
		} else if k.fail.context = ctx.Err(); k.fail.context == nil {
			k.fail.cause = redisconn.ErrSilence
		}
	}
	return known
}

// newState is what a reply of inspect.lua tells of a key.
func newState(key string, val any) (s State, ok bool) {
	r, ok := protocol.ReadInspected(val)
	if !ok {
		return State{}, false
	}
	s = State{Key: key, Held: r.Left != protocol.Free, Label: protocol.LabelOf(r.Value), Token: r.Token, Waiting: int(r.Waiting)}
	if r.Left > 0 {
		s.TimeLeft = timing.Millis(r.Left)
	}
	return s, true
}
