package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// Tries is how often a command is sent that nobody waits long for: the first try may have met a connection that died
// while it was idle.
const Tries = 3

// sweepPause is how long what failed waits for the rest of its pipeline.
const sweepPause = 2 * time.Millisecond

// A Sweep asks about many keys, some at a time. It does not ask a server again that did not answer, so that an outage
// is waited for only once.
type Sweep struct {
	Knock bool              // first see whether somebody listens at the address, see Conn.knock
	down  map[*server]error // why a server is not asked any more
}

// NewSweep returns a Sweep that has asked nobody.
func NewSweep() *Sweep { return &Sweep{down: map[*server]error{}} }

// asking is one Ask.
type asking struct {
	*Sweep
	ctx   context.Context
	calls []*Call
	of    func(i int) *Conn
	d     time.Duration

	mu      sync.Mutex // guards what follows, and down while commands are under way
	sent    []*Call    // the latest command for each call
	failed  []error    // why the command before that failed
	reached map[*server]bool
	retries map[*Conn][]*Call // what has failed, and is sent again together
	open    int
	over    bool
	done    chan struct{}
}

// Ask sends calls, each to the Conn that of returns for it, and returns when all are answered, when d has passed, or when
// ctx has ended. A call that was not answered has neither Val nor Err, unless an earlier try of it failed.
func (s *Sweep) Ask(ctx context.Context, env *timing.Env, d time.Duration, calls []*Call, of func(i int) *Conn) {
	a := &asking{
		Sweep: s, ctx: ctx, calls: calls, of: of, d: d,
		sent: make([]*Call, len(calls)), failed: make([]error, len(calls)), reached: map[*server]bool{}, retries: map[*Conn][]*Call{}, done: make(chan struct{}),
	}
	by := map[*Conn][]*Call{}
	for i, c := range calls {
		if c.Err = s.down[of(i).serverOf(c)]; c.Err == nil {
			by[of(i)] = append(by[of(i)], a.command(i, 1))
			a.open++
		}
	}
	if a.open == 0 {
		return
	}
	for n, calls := range by {
		n.SendAll(ctx, calls)
	}
	env.Await(ctx, d, a.done)
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	for i, t := range a.sent {
		if t == nil || calls[i].Val != nil || calls[i].Err != nil {
			continue
		}
		if calls[i].Err = a.failed[i]; t.server == nil {
			continue
		}
		t.Leave()
		if ctx.Err() == nil && !a.reached[t.server] {
			s.down[t.server] = ErrSilence
		}
	}
}

// command returns the try-th command for call i. One that stays unanswered may still be written to when Ask has returned.
func (a *asking) command(i, try int) *Call {
	c := a.calls[i]
	t := &Call{Args: c.Args, script: c.script, Patience: a.d, Bulk: true}
	t.Then = func(t *Call) { a.answered(i, try, t) }
	if a.Knock {
		n := a.of(i)
		t.run = func() (any, error) {
			if err := n.knock(a.ctx, a.d*3/4); err != nil {
				return nil, err
			}
			return n.script(n.Client, t)
		}
	}
	a.sent[i] = t
	return t
}

func (a *asking) answered(i, try int, t *Call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	if t.Err == nil || ReplyText(t.Err) != "" {
		a.reached[t.server] = true
	}
	if t.Err != nil && try < Tries && !Permanent(t.Err) {
		n := a.of(i)
		if a.retries[n] == nil {
			time.AfterFunc(sweepPause, func() { a.sendAgain(n) })
		}
		a.failed[i] = t.Err
		a.retries[n] = append(a.retries[n], a.command(i, try+1))
		return
	}
	c := a.calls[i]
	if c.Val, c.Err = t.Val, t.Err; c.Err != nil && !a.reached[t.server] {
		a.down[t.server] = c.Err
	}
	if a.open--; a.open == 0 {
		close(a.done)
	}
}

func (a *asking) sendAgain(n *Conn) {
	a.mu.Lock()
	defer a.mu.Unlock() // Ask takes back what was sent before it was over
	if !a.over {
		n.SendAll(a.ctx, a.retries[n])
		delete(a.retries, n)
	}
}
