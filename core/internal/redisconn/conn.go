// Package redisconn brings commands to Redis and answers back, over a client of go-redis: one connection or pool of them,
// how commands share pipelines, and what an error says about whether a command was carried out.
package redisconn

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// Conn is one Redis as a Locker talks to it.
//
// go-redis does not return when a context ends (by default its I/O does not look at it; a cancellation never
// interrupts a read), and it sends a command again by itself after a network error. So calls run on goroutines of
// lanes, which their callers may stop listening to (but see Do), and go-redis is told not to resend: the caller does
// that, and knows then what it knows.
type Conn struct {
	Client redis.UniversalClient
	Env    *timing.Env

	interruptible bool // see Do

	under   atomic.Int32 // commands that were not answered
	heard   atomic.Int64 // when the last answer came, or later the first of them went out
	took    atomic.Int64 // how long that was under way
	lanes   lanes
	inline  atomic.Int64 // no caller runs a command before, see Do
	apart   atomic.Int64 // no bundle is sent before,
	fresh   atomic.Int64 // and none with acquires
	signals sync.Pool    // of channels to use again, see Call.Heard
}

// New is a Conn over client.
func New(client redis.UniversalClient, env *timing.Env) *Conn {
	n := &Conn{Client: client, Env: env, interruptible: interruptible(client)}
	if one, ok := client.(*redis.Client); ok {
		most := one.Options().PoolSize
		// Beyond that one go-redis fails instead of waiting.
		if k := one.Options().MaxActiveConns; k > 0 {
			most = min(most, k)
		}
		n.lanes.most = most * 3 / 4
	}
	return n
}

// Many tells whether there may be several servers behind the client, of which one can hang.
func (n *Conn) Many() bool { _, one := n.Client.(*redis.Client); return !one }

// Responsive tells whether it is worth asking: not where a crowd of commands waits for an answer already, and none
// has come for a while. Else they would gather by the thousands, as each occupies a goroutine for as long as the client's
// timeouts are.
func (n *Conn) Responsive(within time.Duration) bool {
	return n.under.Load() < maxUnanswered || n.Env.Now().Mono-time.Duration(n.heard.Load()) < within
}

const maxUnanswered = 32

// A Call is one script on its way, or what several come to.
type Call struct {
	At   timing.Instant // before it was sent
	Done chan struct{}  // tells the listener, once, that Val and Err are set; nil where Do has run it
	Val  any
	Err  error

	Ctx    context.Context
	script *protocol.Script
	Args   []any // the whole command
	Room   [13]any
	cmd    redis.Cmd

	Number  int64   // room for an argument
	Lasting Lasting // room for a context

	answered atomic.Bool // Val and Err are set
	left     atomic.Bool // nobody listens any more
	signals  *sync.Pool  // that Done comes from

	Then   func(val any, err error) // called at the end
	Urgent bool                     // not to wait for another command: an earlier one went unanswered
}

// Leave stops listening to c.
func (c *Call) Leave() { c.left.Store(true) }

// Answered tells whether Val and Err are set.
func (c *Call) Answered() bool { return c.answered.Load() }

// Full is the whole command with the text of the script, for a server that may not know it.
func (c *Call) Full() []any { return c.script.Full(c.Args) }

// Heard gives the channel back. The last listener, which was told through it, calls it.
func (c *Call) Heard() {
	if c.signals != nil {
		c.signals.Put(c.Done)
		c.Done = nil
	}
}

// NewSum is a Call for which nothing is sent: Answer tells what others came to.
func NewSum(env *timing.Env) *Call { return &Call{At: env.Now(), Done: make(chan struct{}, 1)} }

// Answer tells what c came to, once.
func (c *Call) Answer(val any, err error) {
	c.Val, c.Err = val, err
	c.answered.Store(true)
	then := c.Then
	if c.Done != nil {
		c.Done <- struct{}{}
	}
	if then != nil {
		then(val, err)
	}
}

// A Batch is calls that are to travel together, by the connection.
type Batch map[*Conn][]*Call

// Run sends them, one pipeline for each connection, and returns when each was answered.
func (b Batch) Run() {
	var all sync.WaitGroup
	for n, calls := range b {
		all.Go(func() { n.RunAll(calls, (*Call).Answer) })
	}
	all.Wait()
}

// Set gives c what it is a call of, as package protocol makes it.
func (c *Call) Set(s *protocol.Script, args []any) *Call {
	c.script, c.Args = s, args
	return c
}

// Run sends c and waits for the answer, beside the lanes.
func (n *Conn) Run(c *Call) (any, error) {
	c.cmd = *redis.NewCmd(c.Ctx, c.Args...) // which stays on the stack
	val, err := n.process(c.Ctx, &c.cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // a restart empties the script cache
		return n.process(c.Ctx, redis.NewCmd(c.Ctx, c.script.Full(c.Args)...))
	}
	return val, err
}

func (n *Conn) process(ctx context.Context, cmd *redis.Cmd) (any, error) {
	if err := n.Client.Process(ctx, command{cmd}); err != nil {
		n.failed(ctx, err)
		return nil, err
	}
	return cmd.Result()
}

// RunAll sends calls through a pipeline and hands each reply to done as soon as the pipeline is through. What the
// server does not know goes out again with the text, each with its own: in a Cluster one node may know the script and
// the next may not.
func (n *Conn) RunAll(calls []*Call, done func(c *Call, val any, err error)) {
	if len(calls) == 1 {
		// Not a pipeline: newer go-redis keeps connections of their own for those, and the first would have to dial one.
		val, err := n.Run(calls[0])
		done(calls[0], val, err)
		return
	}
	var again []*Call
	n.pipe(calls, func(c *Call, val any, err error) {
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.Args = c.Full()
			again = append(again, c)
			return
		}
		done(c, val, err)
	})
	if len(again) > 0 {
		n.pipe(again, done)
	}
}

func (n *Conn) pipe(calls []*Call, done func(c *Call, val any, err error)) {
	ctx := context.Background()
	pipe := n.Client.Pipeline()
	for _, c := range calls {
		c.cmd = *redis.NewCmd(ctx, c.Args...)
		_ = pipe.Process(ctx, command{&c.cmd}) // queues; cannot fail
	}
	_, stopped := pipe.Exec(ctx)
	for _, c := range calls {
		val, err := c.cmd.Result() // each command has its own error, unless a hook kept all from being sent
		if val == nil && err == nil {
			err = stopped
		}
		n.failed(ctx, err)
		done(c, val, err)
	}
}

// failed has a Cluster client find out anew who serves which slot when a server gave no answer. By itself
// go-redis does so when a server redirects it, which a dead one does not do, and every 10 s by default: longer
// than many a lease has left, while the replica that took over has the lock. It asks in the background, and
// five times a second at most.
func (n *Conn) failed(ctx context.Context, err error) {
	c, ok := n.Client.(interface{ ReloadState(context.Context) })
	if ok && err != nil && ReplyText(err) == "" && ctx.Err() == nil {
		c.ReloadState(ctx)
	}
}

// command is a go-redis command that go-redis must not send twice.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// Lasting is what context.WithoutCancel makes, in a place of its own.
type Lasting struct{ context.Context }

func (*Lasting) Deadline() (deadline time.Time, ok bool) { return }
func (*Lasting) Done() <-chan struct{}                   { return nil }
func (*Lasting) Err() error                              { return nil }
