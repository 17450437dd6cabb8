package servertest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servertest/throwaway"
	"github.com/redis/go-redis/v9"
)

const patience = throwaway.Patience

// Server is a redis-server (or valkey-server) process of one test.
// Its methods must not be called concurrently with Kill or Start.
type Server struct {
	t     testing.TB
	redis *throwaway.Redis
}

// Redis starts a throwaway server that keeps nothing on disk, with args behind
// its own settings, and ends it with the test. The program is the one named by
// HOLDFAST_REDIS_SERVER, or redis-server or valkey-server in PATH; the test is
// skipped where there is none.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	return open(t, func() (*throwaway.Redis, error) { return throwaway.StartRedis(context.Background(), args...) })
}

// Durable are args of Redis for a server that loses nothing when its process is killed: it writes each command down before it
// answers. A system that goes down as well would need appendfsync always, which has five servers of a test wait for one disk.
var Durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// Sentinel starts a Sentinel that watches master under name, alone, and fails
// over to a replica of it when it has been silent for half a second.
func Sentinel(t testing.TB, name string, master *Server) *Server {
	t.Helper()
	return open(t, func() (*throwaway.Redis, error) {
		return throwaway.StartSentinel(context.Background(), name, master.redis)
	})
}

const redisName = "redis-server"

// open ends the server with the test.
func open(t testing.TB, start func() (*throwaway.Redis, error)) *Server {
	t.Helper()
	_, err := throwaway.FindRedis()
	require(t, redisName, err)
	s, err := start()
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	t.Cleanup(s.Close)
	return &Server{t, s}
}

// Addr returns the server's host:port, which stays the same over a restart.
func (s *Server) Addr() string { return s.redis.Addr() }

// Pid returns the id of the running process.
func (s *Server) Pid() int { return s.redis.Pid() }

// Pause stops the process as a frozen machine would: connections stay open and
// requests pile up in the kernel, to be served after Resume. The end of the test
// resumes it at the latest, before it closes the clients that were made before.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.redis.Pause(); err != nil {
		s.t.Fatalf("servertest: pause %s: %v", s.Addr(), err)
	}
	s.t.Cleanup(func() { _ = s.redis.Resume() })
}

// Resume continues a paused process. Any goroutine of the test may call it.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.redis.Resume(); err != nil {
		s.t.Errorf("servertest: resume %s: %v", s.Addr(), err)
	}
}

// Kill ends the process at once and waits until it is gone; its data is lost.
// It does nothing when the server is already dead.
func (s *Server) Kill() { s.redis.Kill() }

// Start runs a killed server again: same port, same arguments, no data.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.redis.Restart(); err != nil {
		s.t.Fatalf("servertest: restart %s: %v", s.Addr(), err)
	}
}

// Client returns a client with go-redis' default options, changed by opts, and
// closes it with the test.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	return client(s.t, s.Addr(), func() { _ = s.redis.Resume() }, opts)
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
