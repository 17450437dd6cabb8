package sqltest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// faults break the connections of a pool while they commit: some before COMMIT has reached the server, some before
// its answer is back, and some in the middle of another statement. The drivers speak in clear, one statement per write.
type faults struct {
	rate   float64      // of the commits
	next   atomic.Int32 // what becomes of the next commit: 0 by chance, else cutBefore or cutAfter
	before atomic.Int64
	after  atomic.Int64
	other  atomic.Int64
}

const (
	cutBefore = 1 + iota
	cutAfter
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
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.deaf.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *faultyConn) Write(b []byte) (int, error) {
	chance := rand.Float64() / c.faults.rate // +Inf at no rate
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
	case next == cutAfter || next == 0 && chance < 1:
		c.faults.after.Add(1)
		if next == cutAfter || chance < 0.75 {
			c.deaf.Store(true) // it does act on it
			return c.Conn.Write(b)
		}
		n, err := c.Conn.Write(b)
		// The server has it, and perhaps the time to act on it.
		time.Sleep(rand.N(2 * time.Millisecond))
		_ = c.Close()
		return n, err
	}
	return c.Conn.Write(b)
}
