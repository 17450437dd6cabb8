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
	clock  *clock
	gate   *gate
	inbox  *inbox
	votes  bool   // one of several masters
	name   string // its address, then

	plansMu sync.RWMutex
	plans   map[planFor]*string

	// Of one of several masters.
	under atomic.Int32 // commands that were not answered
	heard atomic.Int64 // when the last answer came, or later the first of them went out

	lanes  lanes
	timers *timers
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
	return n.under.Load() < maxUnanswered || n.clock.now().mono-time.Duration(n.heard.Load()) < within
}

const maxUnanswered = 32

func (n *node) shut() { n.inbox.close() }

func (n *node) patience(ttl time.Duration) time.Duration { return patience(ttl) }

func (n *node) allowance(ttl time.Duration) time.Duration { return patience(ttl) }

// same tells whether o uses the same client, as far as can be seen.
func (n *node) same(o servers) bool {
	other, ok := o.(*node)
	return ok && reflect.TypeOf(n.client).Comparable() && n.client == other.client
}

func (n *node) renew(holds []*hold, leases []time.Duration, done func(h *hold, val any, err error)) {
	scripts, calls := make([]*script, len(holds)), make([][]any, len(holds))
	for i, h := range holds {
		scripts[i], calls[i] = h.tenure.(*tenure).renewal(leases[i])
	}
	n.renewAll(scripts, calls, func(i int, val any, err error) { done(holds[i], val, err) })
}

func (n *node) renewAll(scripts []*script, calls [][]any, done func(i int, val any, err error)) {
	if len(calls) == 1 {
		// Not a pipeline: newer go-redis keeps connections of their own for those, and the first renewal would have
		// to dial one.
		val, err := n.run(context.Background(), scripts[0], calls[0])
		done(0, val, err)
		return
	}
	n.batch(context.Background(), scripts, calls, done)
}

// call is one script on its way.
type call struct {
	at   instant       // before it was sent
	done chan struct{} // closed when val and err are set
	val  any
	err  error
	args [13]any // room for the command

	of     *attempt                 // that this call is
	then   func(val any, err error) // called at the end
	urgent bool                     // not to wait for another command: an earlier one went unanswered
	left   atomic.Bool              // nobody listens any more
}

// start sends s with c and returns c at once. The context's values reach go-redis' hooks; its end stops what has
// not been sent yet, and may or may not stop the rest. The key must be a string, since go-redis finds the Cluster
// node by it; what other arguments point to must not change.
func (n *node) start(ctx context.Context, c *call, s *script, args ...any) *call {
	return n.send(ctx, c, s, s.args(c.args[:0], args...))
}

func (n *node) run(ctx context.Context, s *script, args []any) (any, error) {
	val, err := n.process(ctx, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // a restart empties the script cache
		return n.process(ctx, s.full(args))
	}
	return val, err
}

func (n *node) process(ctx context.Context, args []any) (any, error) {
	cmd := command{redis.NewCmd(ctx, args...)}
	if err := n.client.Process(ctx, cmd); err != nil {
		n.failed(ctx, err)
		return nil, err
	}
	return cmd.Result()
}

// batch sends many scripts with their commands through a pipeline and hands each reply to done as soon as
// the pipeline is through. What the server does not know goes out again with the text, each with its own: in a
// Cluster one node may know the script and the next may not.
func (n *node) batch(ctx context.Context, scripts []*script, calls [][]any, done func(i int, val any, err error)) {
	var again [][]any
	var index []int
	n.pipe(ctx, calls, func(i int, val any, err error) {
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			again, index = append(again, scripts[i].full(calls[i])), append(index, i)
			return
		}
		done(i, val, err)
	})
	if len(again) > 0 {
		n.pipe(ctx, again, func(i int, val any, err error) { done(index[i], val, err) })
	}
}

func (n *node) pipe(ctx context.Context, calls [][]any, done func(i int, val any, err error)) {
	pipe := n.client.Pipeline()
	cmds := make([]command, len(calls))
	for i, args := range calls {
		cmds[i] = command{redis.NewCmd(ctx, args...)}
		_ = pipe.Process(ctx, cmds[i]) // queues; cannot fail
	}
	_, stopped := pipe.Exec(ctx)
	for i, cmd := range cmds {
		val, err := cmd.Result() // each command has its own error, unless a hook kept all from being sent
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
