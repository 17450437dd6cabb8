package servertest

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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience bounds the start of a server. It is generous, because a loaded
// machine with two cores starts several at a time.
const patience = 30 * time.Second

// Server is a redis-server (or valkey-server) process of one test, on the
// loopback interface. Its methods must not be called concurrently with Kill or
// Start.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	port int
	head []string // arguments that must come first
	args []string
	env  []string // behind that of this process
	proc *process
}

// Redis starts a throwaway server that keeps nothing on disk, with args behind
// its own settings, and ends it with the test. The program is the one named by
// HOLDFAST_REDIS_SERVER, or redis-server or valkey-server in PATH; the test is
// skipped where there is none.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	return startRedis(t, nil, args...)
}

// startRedis is Redis with env, NAME=value each, in the environment of the server.
func startRedis(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return open(t, func(s *Server) error {
		s.env = env
		s.args = append([]string{
			"--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", s.dir,
			// By default a master waits 5 s for more replicas before it sends its data to the first.
			"--repl-diskless-sync-delay", "0",
		}, args...)
		return nil
	})
}

// Durable are args of Redis for a server that loses nothing when its process is killed: it writes each command down before it
// answers. A system that goes down as well would need appendfsync always, which has five servers of a test wait for one disk.
var Durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// Sentinel starts a Sentinel that watches master under name, alone, and fails
// over to a replica of it when it has been silent for half a second.
func Sentinel(t testing.TB, name string, master *Server) *Server {
	t.Helper()
	return open(t, func(s *Server) error {
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

const redisName = "redis-server"

// open starts the server that prepare describes, and ends it with the test.
func open(t testing.TB, prepare func(*Server) error) *Server {
	t.Helper()
	bin, err := findRedis()
	require(t, redisName, err)
	s := &Server{t: t, bin: bin, dir: t.TempDir()}
	t.Cleanup(s.Kill)
	if err = prepare(s); err == nil {
		err = onFreePort(func(port int) error {
			s.port = port
			err := s.launch()
			if err != nil {
				s.Kill()
			}
			return err
		})
	}
	if err != nil {
		t.Fatalf("servertest: start %s: %v", s.bin, err)
	}
	return s
}

// launch starts the process on the server's port and waits until it answers.
func (s *Server) launch() error {
	args := slices.Concat(s.head, []string{"--port", strconv.Itoa(s.port)}, s.args)
	cmd := exec.Command(s.bin, args...)
	if s.env != nil {
		cmd.Env = append(os.Environ(), s.env...)
	}
	proc, err := startProcess(cmd)
	if err != nil {
		return err
	}
	s.proc = proc
	return proc.Poll(patience, s.ask)
}

// ask returns nil when this server answers, and not one that took the port
// before it. It speaks to the socket itself: go-redis would log each refused
// dial.
func (s *Server) ask() error {
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
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid returns the id of the running process.
func (s *Server) Pid() int { return s.proc.Pid() }

// Pause stops the process as a frozen machine would: connections stay open and
// requests pile up in the kernel, to be served after Resume. The end of the test
// resumes it at the latest, before it closes the clients that were made before.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.proc.Pause(); err != nil {
		s.t.Fatalf("servertest: pause %s: %v", s.Addr(), err)
	}
	s.t.Cleanup(func() { _ = s.proc.Resume() })
}

// Resume continues a paused process. Any goroutine of the test may call it.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.proc.Resume(); err != nil {
		s.t.Errorf("servertest: resume %s: %v", s.Addr(), err)
	}
}

// Kill ends the process at once and waits until it is gone; its data is lost.
// It does nothing when the server is already dead.
func (s *Server) Kill() {
	if s.proc != nil && !s.proc.Gone() {
		s.proc.Kill()
	}
}

// Start runs a killed server again: same port, same arguments, no data.
func (s *Server) Start() {
	s.t.Helper()
	if !s.proc.Gone() {
		s.t.Fatalf("servertest: %s is still running", s.Addr())
	}
	if err := s.launch(); err != nil {
		s.t.Fatalf("servertest: restart %s: %v", s.Addr(), err)
	}
}

// Client returns a client with go-redis' default options, changed by opts, and
// closes it with the test.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	return client(s.t, s.Addr(), func() { _ = s.proc.Resume() }, opts)
}

// client closes its client with the test, and calls before first, which ends a
// server's silence: Close of go-redis v9.19 waits for ever where a reply is being
// read that does not come.
func client(t testing.TB, addr string, before func(), opts []func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() {
		before()
		_ = rdb.Close()
	})
	return rdb
}

// CommandStats returns how often each command ran since the last ResetStats,
// without connection handshakes and its own INFO. The server counts commands
// that scripts call beside the EVALSHA that ran the script; a [Bubble] counts
// only what came over the wire.
func (s *Server) CommandStats(t testing.TB) Counts {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatalf("servertest: command statistics of %s: %v", s.Addr(), err)
	}
	counts, err := parseCommandStats(info)
	if err != nil {
		t.Fatalf("servertest: command statistics of %s: %v", s.Addr(), err)
	}
	return counts
}

// ResetStats sets the counters behind CommandStats to zero.
func (s *Server) ResetStats(t testing.TB) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	if err := rdb.ConfigResetStat(context.Background()).Err(); err != nil {
		t.Fatalf("servertest: reset statistics of %s: %v", s.Addr(), err)
	}
}

// Counts is a number of commands by lower-case name.
type Counts map[string]int64

// Total returns the number of commands of all names.
func (c Counts) Total() int64 {
	var n int64
	for _, calls := range c {
		n += calls
	}
	return n
}

// handshake names what clients send on their own account when they connect.
var handshake = map[string]bool{"hello": true, "client": true, "auth": true, "select": true, "readonly": true}

// parseCommandStats reads lines such as
// "cmdstat_client|setinfo:calls=2,usec=5,usec_per_call=2.50".
func parseCommandStats(info string) (Counts, error) {
	counts := Counts{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_")
		if !ok {
			continue
		}
		name, fields, _ := strings.Cut(rest, ":")
		calls, _, _ := strings.Cut(strings.TrimPrefix(fields, "calls="), ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		base, _, _ := strings.Cut(name, "|")
		if handshake[base] || name == "info" || name == "config|resetstat" {
			continue
		}
		counts[name] = n
	}
	return counts, nil
}
