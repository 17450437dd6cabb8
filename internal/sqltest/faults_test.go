package sqltest

import (
	"bytes"
	"context"
	"math"
	"net"
	"sync/atomic"
	"time"
)

// faults break the connections of a pool while they commit: some before COMMIT has reached the server, some before
// its answer is back, and some in the middle of another statement. The drivers speak in clear, one statement per write.
type faults struct {
	rate   float64        // of the commits
	draw   func() float64 // from 0 to 1, concurrently; needed for a rate
	next   atomic.Int32   // what becomes of the next commit: 0 by chance, else one of those below
	end    func()         // ends the caller's context, for endWithin
	before atomic.Int64
	after  atomic.Int64
	other  atomic.Int64
}

const (
	cutBefore = 1 + iota
	cutAfter
	endWithin // its answer comes, but late: the caller's context ends before
)

func (f *faults) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, faults: f}, nil
}

type faultyConn struct {
	net.Conn
	faults *faults
	deaf   atomic.Bool // what the server says is dropped, and the connection with it
	slow   atomic.Bool // it is heard late
}

func (c *faultyConn) Read(b []byte) (int, error) {
	if c.slow.Swap(false) {
		c.faults.end()
		time.Sleep(50 * time.Millisecond)
	}
	n, err := c.Conn.Read(b)
	if err == nil && c.deaf.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *faultyConn) Write(b []byte) (int, error) {
	chance := math.Inf(1)
	if c.faults.rate > 0 {
		chance = c.faults.draw() / c.faults.rate
	}
	said := bytes.ToLower(b)
	// A BEGIN may say "read committed".
	if !bytes.Contains(said, []byte("commit")) || bytes.Contains(said, []byte("committed")) {
		if chance < 0.02 {
			c.faults.other.Add(1)
			_ = c.Close()
		}
		return c.Conn.Write(b)
	}
	next := c.faults.next.Swap(0)
	switch {
	case next == cutBefore || next == 0 && chance < 0.5:
		c.faults.before.Add(1)
		_ = c.Close()
	case next == endWithin:
		c.slow.Store(true)
	case next == cutAfter || next == 0 && chance < 1:
		c.faults.after.Add(1)
		if next == cutAfter || chance < 0.75 {
			c.deaf.Store(true) // it does act on it
			return c.Conn.Write(b)
		}
		n, err := c.Conn.Write(b)
		// The server has it, and perhaps the time to act on it.
		time.Sleep(time.Duration(c.faults.draw() * float64(2*time.Millisecond)))
		_ = c.Close()
		return n, err
	}
	return c.Conn.Write(b)
}
