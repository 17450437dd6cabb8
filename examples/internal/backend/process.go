package backend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"
)

// Server is a redis-server process on the loopback interface that keeps nothing. It is for what miniredis cannot be: a
// Sentinel or a node of a Cluster. The tests of holdfast use internal/servertest instead, which a copy of an example could not import.
type Server struct {
	Addr string
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// StartServer starts the redis-server that HOLDFAST_REDIS_SERVER names, or else the redis-server or valkey-server in PATH.
// It adds args to its own arguments.
func StartServer(ctx context.Context, args ...string) (*Server, error) {
	return start(ctx, "", append([]string{"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}, args...))
}

// StartSentinel starts a single Sentinel that watches the master under the name "main", and fails over when the master has
// not answered for a second. A real deployment has three, with more patience.
func StartSentinel(ctx context.Context, master *Server) (*Server, error) {
	host, port := master.HostPort()
	return start(ctx, fmt.Sprintf("bind 127.0.0.1\nsentinel monitor main %s %s 1\n"+
		"sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n", host, port), nil)
}

// HostPort returns the two parts of the address.
func (s *Server) HostPort() (host, port string) {
	host, port, _ = net.SplitHostPort(s.Addr)
	return host, port
}

// start tries again if something else, perhaps a connection, takes the port before the server does.
func start(ctx context.Context, sentinel string, args []string) (s *Server, err error) {
	bin, err := find()
	if err != nil {
		return nil, fmt.Errorf("%w: install Redis, or name servers of yours in the environment, as is described at the top of the program", err)
	}
	for range 5 {
		if s, err = launch(ctx, bin, sentinel, args); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("start %s: %w", bin, err)
}

func find() (string, error) {
	if name := os.Getenv("HOLDFAST_REDIS_SERVER"); name != "" {
		return exec.LookPath(name)
	}
	bin, err := exec.LookPath("redis-server")
	if valkey, valkeyErr := exec.LookPath("valkey-server"); err != nil && valkeyErr == nil {
		return valkey, nil
	}
	return bin, err
}

func launch(ctx context.Context, bin, sentinel string, args []string) (_ *Server, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), done: make(chan struct{})}
	if s.dir, err = os.MkdirTemp("", "holdfast-redis-"); err != nil {
		return nil, err
	}
	args = append([]string{"--port", port, "--dir", s.dir}, args...)
	if sentinel != "" { // it rewrites its configuration, so it needs a file of its own
		conf := s.dir + "/sentinel.conf"
		if err := os.WriteFile(conf, []byte(sentinel), 0o600); err != nil {
			return nil, errors.Join(err, os.RemoveAll(s.dir))
		}
		args = append([]string{conf, "--sentinel"}, args...)
	}
	s.cmd = exec.Command(bin, args...)
	dieWithParent(s.cmd)
	started := make(chan error)
	go func() {
		// To the kernel, dying with the parent means dying with the thread that started the child.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
			close(s.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.await(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// freePort returns a port below those that connections get. A node of a Cluster also needs the port that is 10000 higher.
func freePort() (string, error) {
	var err error
	for range 100 {
		port := 10000 + rand.IntN(12000)
		if err = errors.Join(tryPort(port), tryPort(port+10000)); err == nil {
			return strconv.Itoa(port), nil
		}
	}
	return "", err
}

func tryPort(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// await returns when the server answers.
func (s *Server) await(ctx context.Context) error {
	ended := false
	err := Until(ctx, func() error {
		select {
		case <-s.done:
			ended = true
			return nil
		default:
			return s.ask()
		}
	})
	if ended {
		return errors.New("it ended at once")
	}
	return err
}

// ask checks that this server answers, because another one might have taken its port. It uses a plain socket, because
// go-redis would log each refused dial.
func (s *Server) ask() error {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return err
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if lines.Text() == fmt.Sprintf("process_id:%d", s.cmd.Process.Pid) {
			return nil
		}
	}
	return errors.New("another server answers, or none")
}

// Until calls ready until it returns nil, for a minute at most.
func Until(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the process, unless it has ended, and removes what it has written.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill()
	<-s.done
	_ = os.RemoveAll(s.dir)
}
