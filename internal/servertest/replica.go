package servertest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Replica starts a server that follows master, with args behind its own
// settings, and returns once it has all that master had when it was called.
func Replica(t testing.TB, master *Server, args ...string) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	s := Redis(t, append([]string{"--replicaof", host, port}, args...)...)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	err := s.proc.Poll(patience, func() error {
		link, err := rdb.Info(context.Background(), "replication").Result()
		if err == nil && !strings.Contains(link, "master_link_status:up") {
			err = errors.New("not in sync")
		}
		return err
	})
	if err != nil {
		t.Fatalf("servertest: replica of %s: %v", master.Addr(), err)
	}
	return s
}

// CutReplication takes a replica off its master's line for good: it keeps what
// it has, and nothing that is written from here on gets to it.
func (s *Server) CutReplication(t testing.TB) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	// In this order, as a replica whose link is dropped goes back at once. The
	// master knows no password and turns one away.
	for _, args := range [][]any{
		{"CONFIG", "SET", "masterauth", "wrong"},
		{"CLIENT", "KILL", "TYPE", "master"},
	} {
		if err := rdb.Do(context.Background(), args...).Err(); err != nil {
			t.Fatalf("servertest: cut the replication to %s: %v: %v", s.Addr(), args, err)
		}
	}
}
