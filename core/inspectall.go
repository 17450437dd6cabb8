package core

import (
	"context"
	"iter"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/redis/go-redis/v9"
)

// InspectAll is [Locker.Inspect] for many keys: it asks in pipelines, one for each server and up to 128 keys, one
// after the other while the caller ranges over the result. It yields one pair for each key, in the order of keys, and
// the Key of a State beside an error too. An error is about that key alone, of the kinds that Inspect returns; the
// others may be fine.
//
// Each State is what one server (or with [NewRedLock] most of them) said of one key at one moment. All of them together
// are no snapshot: those of a pipeline are some milliseconds apart, pipelines a round trip and whatever the caller does
// between them, so that a lock which moves from one key to another may be seen on both or on neither. To decide on
// anything, acquire.
//
// A server that does not answer within a quarter of the Locker's TTL, at most 1 s (with NewRedLock within the node
// timeout), or cannot be reached, is not asked for the keys behind: what needs it fails at once, so that an outage is not
// waited for again with each pipeline.
func (l *Locker) InspectAll(ctx context.Context, keys ...string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		s := &sweep{locker: l, ctx: ctx, down: map[any]error{}}
		for batch := range slices.Chunk(keys, batchSize) {
			states, errs := s.inspect(batch)
			for i := range batch {
				if !yield(states[i], errs[i]) {
					return
				}
			}
		}
	}
}

// sweep is one pass over keys.
type sweep struct {
	locker *Locker
	ctx    context.Context

	mu   sync.Mutex    // guards what follows, and the views
	down map[any]error // why a server is not asked any more
}

// view is what a batch of keys looks like from all nodes. What comes when over is set has come too late.
type view struct {
	*sweep
	names []protocol.Names // of the keys that are asked about

	heard [][]reply        // by node, by name
	open  map[any]struct{} // servers that have not answered yet
	over  bool
}

// reply is an answer; neither val nor err is set where none came.
type reply struct {
	val any
	err error
}

// inspect tells of a batch of keys. It holds the gate for no longer than that: a caller may take its time between two.
func (s *sweep) inspect(keys []string) ([]State, []error) {
	l := s.locker
	states, errs := make([]State, len(keys)), make([]error, len(keys))
	v := &view{sweep: s, open: map[any]struct{}{}}
	var of []int // the key of each name
	for i, key := range keys {
		states[i].Key = l.cfg.prefix + key
		n, err := l.inspectable(s.ctx, key)
		if err != nil {
			errs[i] = err
			continue
		}
		v.names, of = append(v.names, n), append(of, i)
	}
	if len(of) == 0 {
		return states, errs
	}
	if !l.gate.Enter() {
		for _, i := range of {
			errs[i] = &opError{act: "inspect", key: states[i].Key, outcome: ErrClosed}
		}
		return states, errs
	}
	defer l.gate.Leave()
	var dependent error
	if q, ok := l.redis.(*quorum); ok {
		dependent = q.dependent()
	}
	if dependent == nil && s.ctx.Err() == nil {
		v.ask()
	}
	for k, i := range of {
		fail := &opError{act: "inspect", key: states[i].Key, outcome: ErrUnavailable, cause: dependent, context: s.ctx.Err()}
		if dependent != nil || len(v.heard) == 0 {
			errs[i] = fail
			continue
		}
		r := v.verdict(k)
		if r.err == nil {
			if state, ok := newState(states[i].Key, r.val); ok {
				states[i] = state
				continue
			}
			r.err = errReply
			if r.val == nil {
				r.err = redisconn.ErrSilence
			}
		}
		fail.cause = r.err
		errs[i] = fail
	}
	return states, errs
}

// nodes are those that a Locker's keys are on, each on all.
func (l *Locker) nodes() (all []*node) {
	switch r := l.redis.(type) {
	case *node:
		all = []*node{r}
	case *quorum:
		for _, m := range r.nodes {
			all = append(all, m.node)
		}
	}
	return all
}

// verdict is what the nodes say of a name together.
func (v *view) verdict(k int) reply {
	q, several := v.locker.redis.(*quorum)
	if !several {
		return v.heard[0][k]
	}
	sum := survey{need: q.need, left: len(q.nodes), lefts: map[string][]int64{}, tokens: map[string]int64{}}
	c := new(redisconn.Call)
	for j, m := range q.nodes {
		r := v.heard[j][k]
		if r.val == nil && r.err == nil {
			r.err = redisconn.ErrSilence
		}
		c.Val, c.Err = r.val, r.err
		sum.count(m.name, c)
	}
	val, err, _ := sum.decide()
	return reply{val, err}
}

// ask hears all nodes, for as long as one answer is waited for. It waits for all of them also where a majority is
// enough: the next batch would come upon those that hang once more.
func (v *view) ask() {
	l := v.locker
	nodes := l.nodes()
	v.heard = make([][]reply, len(nodes))
	for j, n := range nodes {
		v.heard[j] = make([]reply, len(v.names))
		v.open[n] = struct{}{}
	}
	done := make(chan struct{}, len(nodes))
	for j, n := range nodes {
		l.gate.Join()
		go func() {
			defer l.gate.Leave()
			v.askNode(j, n)
			done <- struct{}{}
		}()
	}
	timer := l.timers.Get(l.redis.patience(l.cfg.ttl))
	defer l.timers.Rest(timer)
	for left, waits := len(nodes), true; left > 0 && waits; {
		select {
		case <-done:
			left--
		case <-v.ctx.Done():
			waits = false
		case <-timer.C:
			waits = false
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	for server := range v.open {
		v.down[server] = redisconn.ErrSilence
	}
}

// askNode asks each server behind a node by itself: a pipeline is through when all its servers are, and one that hangs
// must not keep the answers of the others.
func (v *view) askNode(j int, n *node) {
	every := make([]int, len(v.names))
	for k := range every {
		every[k] = k
	}
	by := map[any][]int{}
	switch n.Client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		for k := range every {
			var server any = n // which tells what is wrong, where nobody is known to have the slot
			if c, err := n.Master(v.ctx, v.names[k].Lock); err == nil {
				server = c
			}
			by[server] = append(by[server], k)
		}
	default:
		by[n] = every
	}
	v.mu.Lock()
	for server := range by {
		v.open[server] = struct{}{}
	}
	if by[n] == nil {
		delete(v.open, n)
	}
	v.mu.Unlock()
	var all sync.WaitGroup
	for server, which := range by {
		all.Go(func() { v.askServer(j, n, server, which) })
	}
	all.Wait()
}

// askServer asks about some of the names; about those that it fails to serve more than once, as Inspect does.
func (v *view) askServer(j int, n *node, server any, which []int) {
	failure, reached := v.downed(server), false
	if failure != nil {
		for _, k := range which {
			v.put(j, k, nil, failure)
		}
		which = nil
	}
	for try := 1; len(which) > 0; try++ {
		calls := make([]*redisconn.Call, len(which))
		for i, k := range which {
			c := &redisconn.Call{Ctx: v.ctx}
			calls[i] = c.Set(protocol.Inspect(c.Room[:0], &v.names[k]))
		}
		var again []int
		n.RunAll(calls, func(i int, val any, err error) {
			wanted := v.put(j, which[i], val, err)
			if err == nil || redisconn.ReplyText(err) != "" {
				reached = true
				if err == nil {
					return
				}
			}
			failure = err
			if wanted && try < triesOfOne && !permanent(err) {
				again = append(again, which[i])
			}
		})
		which = again
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.open, server)
	if failure != nil && !reached && !v.over {
		v.down[server] = failure
	}
}

func (v *view) downed(server any) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.down[server]
}

// put notes an answer and reports whether any is still waited for.
func (v *view) put(j, k int, val any, err error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.heard[j][k] = reply{val, err}
	}
	return !v.over
}
