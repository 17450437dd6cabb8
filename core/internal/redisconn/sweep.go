package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// Tries is how often a command is sent that nobody waits long for: the first try may have met a connection that died
// while it was idle.
const Tries = 3

// A Sweep asks about many keys, some at a time. It does not ask a server again that did not answer, so that an outage
// is waited for only once.
type Sweep struct {
	mu   sync.Mutex    // guards what follows, and the answers of calls
	down map[any]error // why a server is not asked any more
}

// NewSweep returns a Sweep that has asked nobody.
func NewSweep() *Sweep { return &Sweep{down: map[any]error{}} }

// asking is one Ask. An answer that comes when over is set is too late.
type asking struct {
	*Sweep
	ctx  context.Context
	open map[any]bool // servers that have not answered yet
	over bool
}

// Ask sends each connection its calls. It returns when all are answered, when d has passed, or when ctx has ended. A
// call that was not answered has neither Val nor Err.
func (s *Sweep) Ask(ctx context.Context, env *timing.Env, d time.Duration, by Batch) {
	a := &asking{Sweep: s, ctx: ctx, open: map[any]bool{}}
	done := make(chan struct{})
	for n := range by {
		a.open[n] = true
	}
	env.Go(func() {
		defer close(done)
		var all sync.WaitGroup
		for n, calls := range by {
			all.Go(func() { a.ask(n, calls) })
		}
		all.Wait()
	})
	env.Await(ctx, done, d)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.over = true
	for server := range a.open {
		if ctx.Err() == nil {
			s.down[server] = ErrSilence
		}
	}
}

// ask asks each server behind n separately. A pipeline returns when all its servers have answered, and one server that
// hangs must not hold up the answers of the others.
func (a *asking) ask(n *Conn, calls []*Call) {
	by := map[any][]*Call{}
	switch n.Client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		for _, c := range calls {
			var server any = n // if no node is known to have the slot: the error of n says what is wrong
			if one, err := n.Master(a.ctx, c.Args[3].(string)); err == nil {
				server = one
			}
			by[server] = append(by[server], c)
		}
	default:
		by[n] = calls
	}
	a.mu.Lock()
	for server := range by {
		a.open[server] = true
	}
	if by[n] == nil {
		delete(a.open, n)
	}
	a.mu.Unlock()
	var all sync.WaitGroup
	for server, calls := range by {
		all.Go(func() { a.askServer(n, server, calls) })
	}
	all.Wait()
}

func (a *asking) askServer(n *Conn, server any, calls []*Call) {
	a.mu.Lock()
	failure, reached := a.down[server], false
	a.mu.Unlock()
	if failure != nil {
		for _, c := range calls {
			a.put(c, nil, failure)
		}
		calls = nil
	}
	for try := 1; len(calls) > 0; try++ {
		var again []*Call
		n.RunAll(calls, func(c *Call, val any, err error) {
			wanted := a.put(c, val, err)
			reached = reached || err == nil || ReplyText(err) != ""
			if err == nil {
				return
			}
			failure = err
			if wanted && try < Tries && !Permanent(err) {
				again = append(again, c)
			}
		})
		calls = again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, server)
	if failure != nil && !reached && !a.over {
		a.down[server] = failure
	}
}

// put notes an answer, and reports whether answers are still waited for.
func (a *asking) put(c *Call, val any, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		c.Val, c.Err = val, err
	}
	return !a.over
}
