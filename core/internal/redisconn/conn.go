// Package redisconn takes commands to Redis and brings answers back, over a go-redis client. It decides which
// connection a command takes and when, which commands travel together, what is undone after a failure, and whether an
// error means that a command may have been carried out.
package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// Conn is one Redis as a Locker talks to it: one server, or all that a client for several leads to.
//
// go-redis does not return when a context ends: by default its I/O ignores the context, and a cancellation never
// interrupts a read. After a network error it also sends the command again on its own. So commands run on the
// goroutines of lanes, and their callers may stop listening to them (for an exception see Do). go-redis is told not to
// send again. The caller does that, and so knows which of its commands may have been carried out.
type Conn struct {
	Client redis.UniversalClient
	Env    *timing.Env
	Report func(error) // told what no call returns; may be nil

	only    *server     // has all commands, unless the client says which server has a key
	known   atomic.Bool // there was an answer
	signals sync.Pool   // channels for reuse, see Call.Recycle

	mu      sync.Mutex // guards servers
	servers map[*redis.Client]*server
}

// New returns a Conn over client.
func New(client redis.UniversalClient, env *timing.Env) *Conn {
	n := &Conn{Client: client, Env: env, servers: map[*redis.Client]*server{}}
	if one, ok := client.(*redis.Client); ok {
		n.only = newServer(n, one.Options())
		n.only.home = newHome(n.only, one)
	} else {
		n.only = newServer(n, &redis.Options{PoolSize: spread})
	}
	return n
}

// spread is how many connections a client has for servers that nobody has told apart yet.
const spread = 20

// Many reports whether several servers may be behind the client.
func (n *Conn) Many() bool { _, one := n.Client.(*redis.Client); return !one }

// serverOf returns the server that has c's key. Each server has a queue of its own, so that one can hang while the
// others serve. Which server has a key is asked of a Cluster client only once that has an answer: before, it would have
// to connect first.
func (n *Conn) serverOf(c *Call) *server {
	if !n.Many() || !n.known.Load() {
		return n.only
	}
	node, err := n.Master(context.Background(), c.key())
	if err != nil || node == nil {
		return n.only
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.servers[node]
	if s == nil {
		s = newServer(n, node.Options())
		for old, s := range n.servers { // one that has left the Cluster
			if len(n.servers) >= 100 && s.idle() {
				delete(n.servers, old)
			}
		}
		n.servers[node] = s
	}
	return s
}

// all returns all servers.
func (n *Conn) all() []*server {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := []*server{n.only}
	for _, s := range n.servers {
		all = append(all, s)
	}
	return all
}

// Close is called when the Locker is being shut down: what undoes failed calls does not go on for longer than it must. When
// the Locker is shut down, over, it gives back the connection that is reserved.
func (n *Conn) Close(over bool) {
	for _, s := range n.all() {
		s.cleaner.hasten(over)
		if over {
			s.home.close()
		}
	}
}

// Responsive reports whether it is worth sending a command, for callers that can do without the answer. It is not if
// many commands already wait for an answer and none has come for a while.
func (n *Conn) Responsive(within time.Duration) bool {
	s := n.only
	return s.under.Load() < maxUnanswered || n.Env.Now().Mono-time.Duration(s.heard.Load()) < within
}

const maxUnanswered = 32

// Send puts c into the queue of its server and returns it at once. The context's values reach the hooks of go-redis. If
// the context ends before c is sent, c is not sent. Once it is sent, the end of the context does nothing.
func (n *Conn) Send(ctx context.Context, c *Call) *Call {
	n.enlist(ctx, c)
	c.server.push(c)
	return c
}

// SendAll sends calls that are to travel together.
func (n *Conn) SendAll(ctx context.Context, calls []*Call) {
	by := map[*server][]*Call{}
	for _, c := range calls {
		n.enlist(ctx, c)
		by[c.server] = append(by[c.server], c)
	}
	for s, calls := range by {
		s.push(calls...)
	}
}

// enlist prepares c for the queue of its server.
func (n *Conn) enlist(ctx context.Context, c *Call) {
	c.signals = &n.signals
	var known bool
	if c.Done, known = n.signals.Get().(chan struct{}); !known {
		c.Done = make(chan struct{}, 1)
	}
	n.depart(ctx, c, n.serverOf(c))
}

// depart counts c as under way from now on. server.answer ends that.
func (n *Conn) depart(ctx context.Context, c *Call, s *server) {
	c.Ctx, c.At, c.server = ctx, n.Env.Now(), s
	c.within.Context = ctx
	n.Env.Gate.Join()
	s.under.Add(1)
}

// knock opens a connection and closes it again, to say at once that nobody listens at the address: go-redis would dial five
// times, and log that. It does nothing for a client that is connected, or whose options do not say how it dials and where.
// What else goes wrong is left to go-redis, unless it takes all of d.
func (n *Conn) knock(ctx context.Context, d time.Duration) error {
	client, ok := n.Client.(*redis.Client)
	if !ok || hooked(client) || client.PoolStats().TotalConns > 0 {
		return nil
	}
	o := client.Options()
	if _, _, err := net.SplitHostPort(o.Addr); err != nil { // of a Sentinel's client, or of a socket
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	var op *net.OpError
	switch {
	case err == nil:
		_ = conn.Close()
		return nil
	case errors.As(err, &op) && op.Op == "dial" && !op.Timeout() && !op.Temporary():
		return &nobodyError{o.Addr, err}
	}
	if ctx.Err() == nil {
		return nil
	}
	return err
}

// driver is a client, or one connection of it.
type driver interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Run sends c without a queue and waits for the answer.
func (n *Conn) Run(c *Call) (any, error) {
	c.within.Context = c.Ctx
	return n.one(n.Client, c)
}

// one sends one command over d.
func (n *Conn) one(d driver, c *Call) (val any, err error) {
	defer func() {
		if reason := recover(); reason != nil { // a reply that go-redis does not expect, or a hook
			val, err = nil, panicked(reason)
		}
	}()
	if c.run != nil {
		return c.run()
	}
	return n.script(d, c)
}

// script sends the one command of c over d.
func (n *Conn) script(d driver, c *Call) (val any, err error) {
	c.cmd = *redis.NewCmd(&c.within, c.Args...) // the result of NewCmd stays on the stack
	val, err = n.process(d, c, &c.cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // a restart empties the script cache
		return n.process(d, c, redis.NewCmd(&c.within, c.Full()...))
	}
	return val, err
}

func (n *Conn) process(d driver, c *Call, cmd *redis.Cmd) (any, error) {
	if err := d.Process(&c.within, command{cmd}); err != nil {
		n.failed(err)
		return nil, err
	}
	return cmd.Result()
}

// several sends calls over d, in one pipeline, and passes each reply to done. A call whose script the server does not
// know goes out again with the text. Each such call carries the text itself: in a Cluster one node may know the script
// and the next may not.
func (n *Conn) several(d driver, calls []*Call, done func(c *Call, val any, err error)) {
	var unknown []*Call
	n.pipe(d, calls, func(c *Call, val any, err error) {
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.Args = c.Full()
			unknown = append(unknown, c)
			return
		}
		done(c, val, err)
	})
	if len(unknown) > 0 {
		n.pipe(d, unknown, done)
	}
}

func (n *Conn) pipe(d driver, calls []*Call, done func(c *Call, val any, err error)) {
	ctx := context.Background()
	pipe := d.Pipeline()
	for _, c := range calls {
		c.cmd = *redis.NewCmd(ctx, c.Args...)
		_ = pipe.Process(ctx, command{&c.cmd}) // queues; cannot fail
	}
	stopped := execute(ctx, pipe)
	for _, c := range calls {
		val, err := c.cmd.Result() // each command has its own error, unless a hook kept the pipeline from being sent
		if val == nil && err == nil {
			err = stopped
		}
		n.failed(err)
		done(c, val, err)
	}
}

func execute(ctx context.Context, pipe redis.Pipeliner) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = panicked(reason)
		}
	}()
	_, err = pipe.Exec(ctx)
	return err
}

func panicked(reason any) error { return fmt.Errorf("the client panicked: %v", reason) }

// failed makes a Cluster client ask again which server has which slot when a server gave no answer. On its own go-redis
// asks every 10 s by default, and when a server redirects it, which a dead server does not do. Many a lease has less
// than 10 s left, while the replica that took over has the lock. The client asks in the background, at most five times
// a second.
func (n *Conn) failed(err error) {
	if err == nil {
		return
	}
	if c, ok := n.Client.(interface{ ReloadState(context.Context) }); ok && ReplyText(err) == "" {
		c.ReloadState(context.Background())
	}
}

// command is a go-redis command that go-redis must not send twice.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// Master returns the client of the one server behind n that has key.
func (n *Conn) Master(ctx context.Context, key string) (*redis.Client, error) {
	switch c := n.Client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	case *redis.Client:
		return c, nil
	}
	return nil, nil // a type of the user's own
}

// Pair sends c and then another command at once, on one connection, to the master that has c's key. The second may take
// until limit, whatever the client's ReadTimeout is, and so c may have one lane for that long, though never all of them.
// read makes one value of the two replies.
func (n *Conn) Pair(ctx context.Context, c *Call, limit time.Duration, second []any, read func(val1, val2 any) (any, error)) *Call {
	c.Class = pairs
	c.run = func() (any, error) {
		rdb, err := n.Master(context.Background(), c.key())
		if err != nil {
			return nil, err
		}
		if o := rdb.Options(); o.ReadTimeout > 0 && o.ReadTimeout < limit || !hooked(rdb) {
			// Of the same pool, without hooks. A connection of the client itself would note there, under a lock of its own,
			// whether the server sends notifications, while other connections do so too: see home.connect.
			rdb = rdb.WithTimeout(limit)
			if own := rdb.Options(); o.ReadTimeout <= 0 || o.ReadTimeout > limit {
				own.ReadTimeout, own.WriteTimeout = o.ReadTimeout, o.WriteTimeout
			}
		}
		// Not a pipeline of the client: newer versions of go-redis have a few connections just for those, and a WAIT
		// would keep them from the renewals.
		conn := rdb.Conn()
		defer conn.Close()
		pipe := conn.Pipeline()
		cmd1, cmd2 := command{redis.NewCmd(ctx, c.Args...)}, command{redis.NewCmd(ctx, second...)}
		_ = pipe.Process(&c.within, cmd1) // queues; cannot fail
		_ = pipe.Process(&c.within, cmd2)
		_, _ = pipe.Exec(&c.within) // each command has its own error
		val1, err := cmd1.Result()
		if err == nil {
			var val2 any
			if val2, err = cmd2.Result(); err == nil {
				return read(val1, val2)
			}
		}
		if cluster, ok := n.Client.(*redis.ClusterClient); ok && redis.HasErrorPrefix(err, "MOVED") {
			cluster.ReloadState(ctx) // in the background; on its own it does so only for a node that it chose
		}
		return nil, err
	}
	return n.Send(ctx, c)
}
