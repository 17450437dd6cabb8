// Package redisconn takes commands to Redis and brings answers back, over a go-redis client. It decides which
// connection a command takes, which commands share a pipeline, and whether an error means that a command may have been
// carried out.
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
// go-redis does not return when a context ends: by default its I/O ignores the context, and a cancellation never
// interrupts a read. After a network error it also sends the command again on its own. So commands run on the
// goroutines of lanes, and their callers may stop listening to them (for an exception see Do). go-redis is told not to
// send again. The caller does that, and so knows which of its commands may have been carried out.
type Conn struct {
	Client redis.UniversalClient
	Env    *timing.Env

	interruptible bool // what the function interruptible returned

	under   atomic.Int32 // commands without an answer so far
	heard   atomic.Int64 // when the last answer came, or when the first of these went out if that was later
	took    atomic.Int64 // how long the command of that answer was under way
	lanes   lanes
	inline  atomic.Int64 // until then no caller runs a command itself, see Do
	apart   atomic.Int64 // until then no bundle is sent,
	fresh   atomic.Int64 // and until then none with acquires
	signals sync.Pool    // channels for reuse, see Call.Heard
}

// New returns a Conn over client.
func New(client redis.UniversalClient, env *timing.Env) *Conn {
	n := &Conn{Client: client, Env: env, interruptible: interruptible(client)}
	if one, ok := client.(*redis.Client); ok {
		most := one.Options().PoolSize
		// With more, go-redis fails instead of waiting.
		if k := one.Options().MaxActiveConns; k > 0 {
			most = min(most, k)
		}
		n.lanes.most = most * 3 / 4
	}
	return n
}

// Many reports whether several servers may be behind the client, so that one can hang while the others serve.
func (n *Conn) Many() bool { _, one := n.Client.(*redis.Client); return !one }

// Responsive reports whether it is worth sending a command. It is not if many commands already wait for an answer and
// none has come for a while. Otherwise commands would gather by the thousands, and each occupies a goroutine for as
// long as the client's timeouts.
func (n *Conn) Responsive(within time.Duration) bool {
	return n.under.Load() < maxUnanswered || n.Env.Now().Mono-time.Duration(n.heard.Load()) < within
}

const maxUnanswered = 32

// A Call is one script on its way, or the sum of several such calls.
type Call struct {
	At   timing.Instant // before it was sent
	Done chan struct{}  // signalled once, when Val and Err are set; nil if Do has run the call
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
	signals  *sync.Pool  // the pool that Done comes from

	Then   func(val any, err error) // called when Val and Err are set
	Urgent bool                     // must not wait for another command, because an earlier one went unanswered
}

// Leave stops listening to c.
func (c *Call) Leave() { c.left.Store(true) }

// Answered reports whether Val and Err are set.
func (c *Call) Answered() bool { return c.answered.Load() }

// Full returns the whole command with the text of the script, for a server that may not know it.
func (c *Call) Full() []any { return c.script.Full(c.Args) }

// Heard gives Done back for reuse. The last listener calls it after it has received from Done.
func (c *Call) Heard() {
	if c.signals != nil {
		c.signals.Put(c.Done)
		c.Done = nil
	}
}

// NewSum returns a Call for which nothing is sent: Answer sets what other calls amount to.
func NewSum(env *timing.Env) *Call { return &Call{At: env.Now(), Done: make(chan struct{}, 1)} }

// Answer sets the result of c, once.
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

// A Batch is a set of calls that are to travel together, by connection.
type Batch map[*Conn][]*Call

// Run sends the calls, one pipeline for each connection, and returns when all of them are answered.
func (b Batch) Run() {
	var all sync.WaitGroup
	for n, calls := range b {
		all.Go(func() { n.RunAll(calls, (*Call).Answer) })
	}
	all.Wait()
}

// Set makes c a call of s with args, as a function of package protocol returns them.
func (c *Call) Set(s *protocol.Script, args []any) *Call {
	c.script, c.Args = s, args
	return c
}

// Run sends c without a lane and waits for the answer.
func (n *Conn) Run(c *Call) (any, error) {
	c.cmd = *redis.NewCmd(c.Ctx, c.Args...) // the result of NewCmd stays on the stack
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

// RunAll sends calls through a pipeline and passes the replies to done once the pipeline has returned. A call whose
// script the server does not know goes out again with the text. Each such call carries the text itself: in a Cluster
// one node may know the script and the next may not.
func (n *Conn) RunAll(calls []*Call, done func(c *Call, val any, err error)) {
	if len(calls) == 1 {
		// Not a pipeline: newer versions of go-redis have separate connections for those, and the first would have to
		// dial one.
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
		val, err := c.cmd.Result() // each command has its own error, unless a hook kept the pipeline from being sent
		if val == nil && err == nil {
			err = stopped
		}
		n.failed(ctx, err)
		done(c, val, err)
	}
}

// failed makes a Cluster client ask again which server has which slot when a server gave no answer. On its own go-redis
// asks every 10 s by default, and when a server redirects it, which a dead server does not do. Many a lease has less
// than 10 s left, while the replica that took over has the lock. The client asks in the background, at most five times
// a second.
func (n *Conn) failed(ctx context.Context, err error) {
	c, ok := n.Client.(interface{ ReloadState(context.Context) })
	if ok && err != nil && ReplyText(err) == "" && ctx.Err() == nil {
		c.ReloadState(ctx)
	}
}

// command is a go-redis command that go-redis must not send twice.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// Lasting does what context.WithoutCancel does, without an allocation.
type Lasting struct{ context.Context }

func (*Lasting) Deadline() (deadline time.Time, ok bool) { return }
func (*Lasting) Done() <-chan struct{}                   { return nil }
func (*Lasting) Err() error                              { return nil }
