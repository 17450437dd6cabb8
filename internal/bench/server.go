package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
	for tries := 1; ; tries++ {
		s, err := launch(ctx, bin)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errEnded) || tries == 5 {
			return nil, fmt.Errorf("start %s: %w", bin, err)
		}
	}
}

// launch fails with errEnded where somebody else, a connection perhaps, takes the port before the server does.
func launch(ctx context.Context, bin string) (*server, error) {
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
		return nil, err
	}
	return s, nil
}

var errEnded = errors.New("it ended at once")

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
		err := s.ask()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errEnded
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ask makes sure that it is this server that answers: another one may have taken the port first.
func (s *server) ask() error {
	conn, err := net.DialTimeout("tcp", s.addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("INFO server\r\n")); err != nil {
		return err
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if pid, ok := strings.CutPrefix(lines.Text(), "process_id:"); ok {
			if pid != strconv.Itoa(s.cmd.Process.Pid) {
				return errors.New("another server has its port")
			}
			return nil
		}
	}
	return errors.New("it does not know its process id")
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill() // fails where it has ended already
	<-s.done
	_ = os.RemoveAll(s.dir)
}
