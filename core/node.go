package core

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// node is one Redis as a Locker talks to it.
//
// go-redis does not return when a context ends (by default its I/O does not look at it; a cancellation never
// interrupts a read), and it sends a command again by itself after a network error. So each call runs on a
// goroutine of its own, which its caller may stop listening to, and go-redis is told not to resend: the
// tenure does that, and knows then what it knows.
type node struct {
	client redis.UniversalClient
	clock  *timing.Clock
	gate   *timing.Gate
	inbox  *inbox
	votes  bool   // one of several masters
	name   string // its address, then

	plansMu sync.RWMutex
	plans   map[planFor]*string

	// Of one of several masters.
	under atomic.Int32 // commands that were not answered
	heard atomic.Int64 // when the last answer came, or later the first of them went out

	lanes   lanes
	timers  *timing.Timers
	signals sync.Pool // of channels to use again, see call.heard
}

// many tells whether there may be several servers behind the client, of which one can hang.
func (n *node) many() bool { _, one := n.client.(*redis.Client); return !one }

func (n *node) open() <-chan struct{} { return n.inbox.open() }

func (n *node) covers(time.Duration) error { return nil }

func (n *node) isUp() bool { return n.inbox.isUp() }

// responsive tells whether it is worth asking: not where a crowd of commands waits for an answer already, and none
// has come for a while. Else they would gather by the thousands, as each occupies a goroutine for as long as the client's
// timeouts are.
func (n *node) responsive(within time.Duration) bool {
	return n.under.Load() < maxUnanswered || n.clock.Now().Mono-time.Duration(n.heard.Load()) < within
}

const maxUnanswered = 32

func (n *node) shut() { n.inbox.close() }

func (n *node) patience(ttl time.Duration) time.Duration { return timing.Patience(ttl) }

func (n *node) allowance(ttl time.Duration) time.Duration { return timing.Patience(ttl) }

// same tells whether o uses the same client, as far as can be seen.
func (n *node) same(o servers) bool {
	other, ok := o.(*node)
	return ok && reflect.TypeOf(n.client).Comparable() && n.client == other.client
}

func (n *node) renew(holds []*hold, leases []time.Duration, done func(h *hold, val any, err error)) {
	calls := make([]*call, len(holds))
	for i, h := range holds {
		calls[i] = h.tenure.(*tenure).renewal(leases[i])
	}
	n.runAll(calls, func(i int, val any, err error) { done(holds[i], val, err) })
}

// call is one script on its way.
type call struct {
	at   timing.Instant // before it was sent
	done chan struct{}  // tells whoever listens, once, that val and err are set
	val  any
	err  error

	ctx    context.Context
	script *protocol.Script
	args   []any // the whole command
	room   [13]any
	cmd    redis.Cmd

	number  int64   // room for an argument
	lasting lasting // room for a context

	answered atomic.Bool // val and err are set
	signals  *sync.Pool  // that done comes from

	of     *attempt                 // that this call is
	then   func(val any, err error) // called at the end
	urgent bool                     // not to wait for another command: an earlier one went unanswered
	left   atomic.Bool              // nobody listens any more
}

// heard gives the channel back; for one who was told through it and is the last to listen.
func (c *call) heard() {
	if c.signals != nil {
		c.signals.Put(c.done)
		c.done = nil
	}
}

// set gives c what it is a call of, as package protocol makes it.
func (c *call) set(s *protocol.Script, args []any) *call {
	c.script, c.args = s, args
	return c
}

func (n *node) run(c *call) (any, error) {
	c.cmd = *redis.NewCmd(c.ctx, c.args...) // which stays on the stack
	val, err := n.process(c.ctx, &c.cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // a restart empties the script cache
		return n.process(c.ctx, redis.NewCmd(c.ctx, c.script.Full(c.args)...))
	}
	return val, err
}

func (n *node) process(ctx context.Context, cmd *redis.Cmd) (any, error) {
	if err := n.client.Process(ctx, command{cmd}); err != nil {
		n.failed(ctx, err)
		return nil, err
	}
	return cmd.Result()
}

// runAll sends calls through a pipeline and hands each reply to done as soon as the pipeline is through. What the
// server does not know goes out again with the text, each with its own: in a Cluster one node may know the script and
// the next may not.
func (n *node) runAll(calls []*call, done func(i int, val any, err error)) {
	if len(calls) == 1 {
		// Not a pipeline: newer go-redis keeps connections of their own for those, and the first would have to dial one.
		val, err := n.run(calls[0])
		done(0, val, err)
		return
	}
	var again []*call
	var index []int
	n.pipe(calls, func(i int, val any, err error) {
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			again, index = append(again, &call{args: calls[i].script.Full(calls[i].args)}), append(index, i)
			return
		}
		done(i, val, err)
	})
	if len(again) > 0 {
		n.pipe(again, func(i int, val any, err error) { done(index[i], val, err) })
	}
}

func (n *node) pipe(calls []*call, done func(i int, val any, err error)) {
	ctx := context.Background()
	pipe := n.client.Pipeline()
	for _, c := range calls {
		c.cmd = *redis.NewCmd(ctx, c.args...)
		_ = pipe.Process(ctx, command{&c.cmd}) // queues; cannot fail
	}
	_, stopped := pipe.Exec(ctx)
	for i, c := range calls {
		val, err := c.cmd.Result() // each command has its own error, unless a hook kept all from being sent
		if val == nil && err == nil {
			err = stopped
		}
		n.failed(ctx, err)
		done(i, val, err)
	}
}

// failed has a Cluster client find out anew who serves which slot when a server gave no answer. By itself
// go-redis does so when a server redirects it, which a dead one does not do, and every 10 s by default: longer
// than many a lease has left, while the replica that took over has the lock. It asks in the background, and
// five times a second at most.
func (n *node) failed(ctx context.Context, err error) {
	c, ok := n.client.(interface{ ReloadState(context.Context) })
	if ok && err != nil && replyText(err) == "" && ctx.Err() == nil {
		c.ReloadState(ctx)
	}
}

// command is a go-redis command that go-redis must not send twice.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// errSilence stands for an answer that did not come in time.
var errSilence = errors.New("no answer in time")

// fleeting error replies: the server could not serve right now. The client follows MOVED and ASK itself;
// they get here while a Cluster reshards.
var fleeting = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY", "NOREPLICAS",
	"MISCONF", "OOM", "UNBLOCKED", "ERR max number of clients",
}

// replyText is the text of an error reply, with the code in front; "" for any other error. Redis before 7
// wraps an error from inside a script: "ERR Error running script (call to f_1f...): @user_script:12: OOM ...".
func replyText(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	s := reply.Error()
	if strings.HasPrefix(s, "ERR Error running script") {
		if i := strings.LastIndex(s, "user_script:"); i >= 0 {
			s = strings.TrimLeft(s[i+len("user_script:"):], " -:0123456789")
		}
	}
	return s
}

// permanent tells whether asking again can only fail again: a refusal for a reason that does not pass by
// itself (WRONGTYPE, NOAUTH, NOPERM, a broken script, ...), or a closed client.
func permanent(err error) bool {
	if several := (*quorumError)(nil); errors.As(err, &several) {
		return several.permanent()
	}
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrInvalid) || errors.Is(err, errExhausted) {
		return true
	}
	text := replyText(err)
	for _, prefix := range fleeting {
		if strings.HasPrefix(text, prefix) {
			return false
		}
	}
	return text != ""
}

// harmless tells whether a command that failed with err certainly changed nothing: it was never sent, or
// Redis refused it with a code that comes before the first write. A general ERR may come from the middle of
// a script.
func harmless(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return true
	}
	if _, ok := err.(unsent); ok {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	text := replyText(err)
	return text != "" && !strings.HasPrefix(text, "ERR")
}
