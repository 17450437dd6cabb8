package throwaway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Patience bounds the start of a server. It is generous, because a loaded
// machine with two cores starts several at a time.
const Patience = 30 * time.Second

// Redis is a redis-server, or valkey-server, on the loopback interface that
// keeps nothing. Its methods must not be called concurrently with Kill or
// Restart.
type Redis struct {
	ctx  context.Context // the process ends with it
	bin  string
	dir  string
	port int
	head []string // arguments that must come first
	args []string
	env  []string // behind that of this process
	proc *Process
}

// FindRedis returns the program named by HOLDFAST_REDIS_SERVER, or redis-server
// or valkey-server in PATH.
func FindRedis() (string, error) {
	path, err := os.Getenv("HOLDFAST_REDIS_SERVER"), error(nil)
	if path != "" {
		path, err = exec.LookPath(path)
	} else {
		path, err = Find([]string{"redis-server", "valkey-server"})
	}
	if err != nil {
		err = fmt.Errorf("%w: install Redis or Valkey, or name a server in HOLDFAST_REDIS_SERVER", err)
	}
	return path, err
}

// StartRedis starts a server with args behind its own settings, and returns
// when it answers. It ends with ctx, or by Close.
func StartRedis(ctx context.Context, args ...string) (*Redis, error) {
	return StartRedisWith(ctx, nil, args...)
}

// StartRedisWith is StartRedis with env, NAME=value each, in the environment of the
// server.
func StartRedisWith(ctx context.Context, env []string, args ...string) (*Redis, error) {
	return start(ctx, func(s *Redis) error {
		s.env = env
		s.args = append([]string{
			"--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", s.dir,
			// By default a master waits 5 s for more replicas before it sends its data to the first.
			"--repl-diskless-sync-delay", "0",
		}, args...)
		return nil
	})
}

// StartSentinel starts a Sentinel that watches master under name, alone, and
// fails over to a replica of it when it has been silent for half a second.
func StartSentinel(ctx context.Context, name string, master *Redis) (*Redis, error) {
	return start(ctx, func(s *Redis) error {
		// A Sentinel rewrites its configuration, so that it needs a file of its own.
		conf := filepath.Join(s.dir, "sentinel.conf")
		text := fmt.Sprintf("dir %[1]q\nbind 127.0.0.1\n"+
			"sentinel monitor %[2]s 127.0.0.1 %[3]d 1\n"+
			"sentinel down-after-milliseconds %[2]s 500\n"+
			"sentinel failover-timeout %[2]s 5000\n", s.dir, name, master.port)
		s.head = []string{conf, "--sentinel"}
		return os.WriteFile(conf, []byte(text), 0o600)
	})
}

func start(ctx context.Context, prepare func(*Redis) error) (_ *Redis, err error) {
	s := &Redis{ctx: ctx}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.bin, err = FindRedis(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "holdfast-redis-"); err != nil {
		return nil, err
	}
	if err := prepare(s); err != nil {
		return nil, err
	}
	err = OnFreePort(func(port int) error {
		s.port = port
		err := s.launch()
		if err != nil {
			s.Kill()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.bin, errors.Join(ctx.Err(), err))
	}
	return s, nil
}

// launch starts the process on the server's port and waits until it answers.
func (s *Redis) launch() error {
	args := slices.Concat(s.head, []string{"--port", strconv.Itoa(s.port)}, s.args)
	cmd := exec.CommandContext(s.ctx, s.bin, args...)
	if s.env != nil {
		cmd.Env = append(os.Environ(), s.env...)
	}
	proc, err := Start(cmd)
	if err != nil {
		return err
	}
	s.proc = proc
	return proc.Poll(Patience, s.ask)
}

// ask returns nil when this server answers, and not one that took the port
// before it. It speaks to the socket itself: go-redis would log each refused
// dial.
func (s *Redis) ask() error {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "-NOAUTH"):
			return nil // args asked for a password: it is up all the same
		case strings.HasPrefix(line, "-"):
			return errors.New(line)
		case line == fmt.Sprintf("process_id:%d", s.Pid()):
			return nil
		case strings.HasPrefix(line, "process_id:"):
			return fmt.Errorf("port %d is in use by another server", s.port)
		}
	}
	return errors.Join(errors.New("it does not tell its process id"), lines.Err())
}

// Addr returns the server's host:port, which stays the same over a restart.
func (s *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid returns the id of the running process.
func (s *Redis) Pid() int { return s.proc.Pid() }

// Pause stops the process as a frozen machine would: connections stay open and
// requests pile up in the kernel, to be served after Resume.
func (s *Redis) Pause() error { return s.proc.Pause() }

// Resume continues a paused process.
func (s *Redis) Resume() error { return s.proc.Resume() }

// Kill ends the process at once and waits until it is gone; its data is lost.
// It does nothing when the server is already dead.
func (s *Redis) Kill() {
	if s.proc != nil && !s.Gone() {
		s.proc.Kill()
	}
}

// Gone reports whether the process has ended.
func (s *Redis) Gone() bool { return s.proc.Gone() }

// Restart runs a killed server again: same port, same arguments, no data.
func (s *Redis) Restart() error {
	if !s.Gone() {
		return errors.New("it is still running")
	}
	return s.launch()
}

// Poll calls ready until it returns nil, the server ends, or Patience is over.
func (s *Redis) Poll(ready func() error) error { return s.proc.Poll(Patience, ready) }

// Close ends the server and removes what it has written.
func (s *Redis) Close() {
	s.Kill()
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
