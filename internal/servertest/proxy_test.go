package servertest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// through returns a real server, a proxy before it, and a client of the proxy
// with an open connection.
func through(t *testing.T) (*Server, *FaultProxy, *redis.Client) {
	t.Helper()
	s := Redis(t)
	p := Proxy(t, s.Addr())
	rdb := p.Client(impatient)
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	return s, p, rdb
}

func TestProxyResetEndsConnections(t *testing.T) {
	_, p, _ := through(t)
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "both connections", func() bool { return p.Conns() == 2 })
	p.Reset()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after Reset: got error %v, want a reset", err)
	}
	eventually(t, "no connection", func() bool { return p.Conns() == 0 })
}

func TestProxyJudgesCommandsOfARealServer(t *testing.T) {
	ctx := context.Background()
	s, p, rdb := through(t)
	p.OnCommand(func(args []string) Verdict {
		if args[0] == "incr" {
			return LoseReply
		}
		return Pass
	})
	if err := rdb.Incr(ctx, "n").Err(); !isTimeout(err) {
		t.Errorf("lost reply: got error %v, want a time-out", err)
	}
	if got := s.Client().Get(ctx, "n").Val(); got != "1" {
		t.Errorf("n is %q, want 1", got)
	}
}

// TestProxyPassesOtherProtocols uses first bytes that could begin half a RESP
// value, which must not be waited for.
func TestProxyPassesOtherProtocols(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "+\x00\x00hello\n")
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	p := Proxy(t, l.Addr().String())
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	if got, err := r.ReadString('\n'); got != "+\x00\x00hello\n" {
		t.Fatalf("greeting: got %q, %v", got, err)
	}
	for _, text := range []string{":\x00\x00login\n", "*2\r\n"} {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); got != text {
			t.Errorf("echo: got %q, %v, want %q", got, err, text)
		}
	}
}

func TestProxyMovesToAnotherServer(t *testing.T) {
	ctx := context.Background()
	old, p, rdb := through(t)
	sub := rdb.Subscribe(ctx, "c")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	now := Redis(t)
	p.Move(now.Addr())
	eventually(t, "a command at the new server", func() bool { return rdb.Set(ctx, "k", "v", 0).Err() == nil })
	if got := now.Client().Get(ctx, "k").Val(); got != "v" {
		t.Errorf("the new server has %q", got)
	}
	if n := old.Client().Publish(ctx, "c", "m").Val(); n != 1 {
		t.Errorf("%d subscribers stayed at the old server, want 1", n)
	}
	if msg, err := sub.ReceiveMessage(ctx); err != nil || msg.Payload != "m" {
		t.Errorf("got %v, %v", msg, err)
	}
}
