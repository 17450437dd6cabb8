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
	rate   float64 // of the commits
	before atomic.Int64
	after  atomic.Int64
	other  atomic.Int64
}

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
}

func (c *faultyConn) Write(b []byte) (int, error) {
	chance := rand.Float64() / c.faults.rate
	if !bytes.Contains(bytes.ToLower(b), []byte("commit")) {
		if chance < 0.02 {
			c.faults.other.Add(1)
			_ = c.Close()
		}
		return c.Conn.Write(b)
	}
	switch {
	case chance < 0.5:
		c.faults.before.Add(1)
		_ = c.Close()
	case chance < 1:
		c.faults.after.Add(1)
		n, err := c.Conn.Write(b)
		// The server has it, and perhaps the time to act on it.
		time.Sleep(rand.N(2 * time.Millisecond))
		_ = c.Close()
		return n, err
	}
	return c.Conn.Write(b)
}
