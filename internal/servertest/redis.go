package servertest

import (
	"context"
	"fmt"
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
	"github.com/redis/go-redis/v9/maintnotifications"
)

// patience bounds the start of a server. It is generous, because a loaded
// machine with two cores starts several at a time.
const patience = 30 * time.Second

// Server is a redis-server (or valkey-server) process of one test.
// Its methods must not be called concurrently with Kill or Start.
type Server struct {
	t    testing.TB
	bin  string
	port int
	head []string // arguments that must come first
	args []string
	proc *process
}

// Redis starts a throwaway server that keeps nothing on disk, with args behind
// its own settings, and ends it with the test. The program is the one named by
// HOLDFAST_REDIS_SERVER, or redis-server or valkey-server in PATH; the test is
// skipped where there is none.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	bin, err := redisBinary()
	require(t, redisName, err)

	s := &Server{t: t, bin: bin}
	s.args = append([]string{
		"--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", t.TempDir(),
		// By default a master waits 5 s for more replicas before it sends its data to the first.
		"--repl-diskless-sync-delay", "0",
	}, args...)
	s.open()
	return s
}

// Sentinel starts a Sentinel that watches master under name, alone, and fails
// over to a replica of it when it has been silent for half a second.
func Sentinel(t testing.TB, name string, master *Server) *Server {
	t.Helper()
	bin, err := redisBinary()
	require(t, redisName, err)

	// A Sentinel rewrites its configuration, so that it needs a file of its own.
	dir := t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("dir %[1]q\nbind 127.0.0.1\n"+
		"sentinel monitor %[2]s 127.0.0.1 %[3]d 1\n"+
		"sentinel down-after-milliseconds %[2]s 500\n"+
		"sentinel failover-timeout %[2]s 5000\n", dir, name, master.port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, bin: bin, head: []string{conf, "--sentinel"}}
	s.open()
	return s
}

// open starts the server on a free port and ends it with the test.
func (s *Server) open() {
	s.t.Helper()
	s.t.Cleanup(s.Kill)
	err := onFreePort(func(port int) error {
		s.port = port
		err := s.launch()
		if err != nil {
			s.Kill()
		}
		return err
	})
	if err != nil {
		s.t.Fatalf("servertest: start %s: %v", s.bin, err)
	}
}

const redisName = "redis-server"

func redisBinary() (string, error) {
	if path := os.Getenv("HOLDFAST_REDIS_SERVER"); path != "" {
		return exec.LookPath(path)
	}
	return find([]string{"redis-server", "valkey-server"})
}

// launch starts the process on the server's port and waits until it answers.
func (s *Server) launch() error {
	args := slices.Concat(s.head, []string{"--port", strconv.Itoa(s.port)}, s.args)
	proc, err := spawn(exec.Command(s.bin, args...))
	if err != nil {
		return err
	}
	s.proc = proc
	rdb := redis.NewClient(&redis.Options{
		Addr:            s.Addr(),
		MaxRetries:      -1,
		DialerRetries:   1,
		DialTimeout:     time.Second,
		ReadTimeout:     time.Second,
		DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})
	defer rdb.Close()
	return proc.poll(patience, func() error {
		if err := accepts(s.port); err != nil {
			return err
		}
		err := rdb.Ping(context.Background()).Err()
		if err != nil && strings.Contains(err.Error(), "NOAUTH") {
			return nil // args asked for a password: it is up all the same
		}
		if err != nil {
			return err
		}
		return s.isOurs(rdb)
	})
}

// isOurs tells this server from one that took the port before it.
func (s *Server) isOurs(rdb *redis.Client) error {
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("process_id:%d\r\n", s.Pid()); !strings.Contains(info, want) {
		return fmt.Errorf("port %d is in use by another server", s.port)
	}
	return nil
}

// Addr returns the server's host:port, which stays the same over a restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid returns the id of the running process.
func (s *Server) Pid() int { return s.proc.pid() }

// Pause stops the process as a frozen machine would: connections stay open and
// requests pile up in the kernel, to be served after Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := pauseProcess(s.proc.cmd.Process); err != nil {
		s.t.Fatalf("servertest: pause %s: %v", s.Addr(), err)
	}
}

// Resume continues a paused process.
func (s *Server) Resume() {
	s.t.Helper()
	if err := resumeProcess(s.proc.cmd.Process); err != nil {
		s.t.Fatalf("servertest: resume %s: %v", s.Addr(), err)
	}
}

// Kill ends the process at once and waits until it is gone; its data is lost.
// It does nothing when the server is already dead.
func (s *Server) Kill() {
	if s.proc != nil && !s.proc.gone() {
		s.proc.kill()
	}
}

// Start runs a killed server again: same port, same arguments, no data.
func (s *Server) Start() {
	s.t.Helper()
	if !s.proc.gone() {
		s.t.Fatalf("servertest: start %s: it is still running", s.Addr())
	}
	if err := s.launch(); err != nil {
		s.t.Fatalf("servertest: restart %s: %v", s.Addr(), err)
	}
}

// Client returns a client with go-redis' default options, changed by opts, and
// closes it with the test.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	s.t.Cleanup(func() { _ = rdb.Close() })
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
