package page

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// gate lets a replica be paused at a moment that shows something: in the middle of a payment, while the replica holds the
// lock, and while none of its requests is in a transaction. A process that is stopped in a transaction blocks the others in
// the database, above all by SQLite's only write lock, and nobody would see what the lock does.
//
// If processes cannot be stopped, the gate also simulates that: see freeze.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond
	wanted  bool // payments do not end
	closed  bool // nothing enters
	frozen  bool // nothing moves
	working int  // requests between enter and leave
	paying  int
}

func newGate() *gate {
	g := &gate{}
	g.changed.L = &g.mu
	return g
}

// enter begins work that must not be paused.
func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.closed {
		g.changed.Wait()
	}
	g.working++
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.working--
	g.changed.Broadcast()
}

// pay runs a payment within work. The payment can be paused.
func (g *gate) pay(payment func()) {
	g.mu.Lock()
	g.working--
	g.paying++
	g.changed.Broadcast()
	g.mu.Unlock()

	payment()

	g.mu.Lock()
	defer g.mu.Unlock()
	for g.wanted || g.closed {
		g.changed.Wait()
	}
	g.paying--
	g.working++
}

// close returns once a payment is under way and held up, and no work is. If no payment is under way, it first waits for one
// to begin. Only then does it shut other requests out: they could be in the way of that payment.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wanted = true
	for g.wanted && g.paying == 0 {
		g.changed.Wait()
	}
	g.closed = g.wanted
	for g.closed && g.working > 0 {
		g.changed.Wait()
	}
}

// freeze holds up everything that goes to Redis, comes from it or is reported, until open. From the outside it looks like a
// stopped process. Inside, timers go on.
func (g *gate) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = g.closed
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wanted, g.closed, g.frozen = false, false, false
	g.changed.Broadcast()
}

// thawed waits until nothing is frozen.
func (g *gate) thawed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.frozen {
		g.changed.Wait()
	}
}

// dial makes the connections of o go through the gate.
func (g *gate) dial(o *redis.Options) {
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		g.thawed()
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &gatedConn{c, g}, nil
	}
}

type gatedConn struct {
	net.Conn
	gate *gate
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.gate.thawed()
	return c.Conn.Write(p)
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.thawed()
	return n, err
}
