package servertest

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is the client's end of a connection in a bubble. It gives the errors of
// a socket where those of a pipe differ, since go-redis tells by the error
// whether to try again.
type conn struct {
	net.Conn
	relay  *relay
	addr   address
	closed atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.translate("read", err, io.EOF)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.translate("write", err, syscall.EPIPE)
}

func (c *conn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error      { return c.setting(c.Conn.SetDeadline(t)) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.setting(c.Conn.SetReadDeadline(t)) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setting(c.Conn.SetWriteDeadline(t)) }

// setting drops the error of a deadline on a connection that the other end has
// closed: on a socket only the next read or write notices.
func (c *conn) setting(err error) error {
	if err != nil && c.closed.Load() {
		return net.ErrClosed
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return address("127.0.0.1:0") }
func (c *conn) RemoteAddr() net.Addr { return c.addr }

// translate names what ended the connection: this end, a reset, or else the
// server, for which a socket has the error gone.
func (c *conn) translate(op string, err, gone error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	if c.relay.reset.Load() {
		gone = syscall.ECONNRESET
	}
	if c.closed.Load() {
		gone = net.ErrClosed
	}
	if gone == io.EOF {
		return io.EOF
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: c.addr, Err: gone}
}
