package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// server is a redis-server on the loopback interface that keeps nothing.
type server struct {
	addr string
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startServer starts the program named by HOLDFAST_REDIS_SERVER, or redis-server or valkey-server. It ends with
// ctx or with stop.
func startServer(ctx context.Context) (*server, error) {
	bin, err := findServer()
	if err != nil {
		return nil, err
	}
	// The port is free now; should somebody else take it first, the server fails to start.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", port), done: make(chan struct{})}
	if s.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return nil, err
	}
	s.cmd = exec.CommandContext(ctx, bin,
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no")
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	if err := s.await(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	return s, nil
}

func findServer() (string, error) {
	if path := os.Getenv("HOLDFAST_REDIS_SERVER"); path != "" {
		return exec.LookPath(path)
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		bin, err = exec.LookPath("valkey-server")
	}
	return bin, err
}

// await returns when the server answers. It speaks to the socket itself: go-redis would log each refused dial.
func (s *server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := s.ping()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *server) ping() error {
	conn, err := net.DialTimeout("tcp", s.addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	reply := make([]byte, len("+PONG"))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if string(reply) != "+PONG" {
		return fmt.Errorf("PING was answered with %q", reply)
	}
	return nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill() // fails where it has ended already
	<-s.done
	_ = os.RemoveAll(s.dir)
}
