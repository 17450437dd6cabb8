package core_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Master and replica change places. The commands of a waiter follow, its inbox stays with the server that is a
// replica now. What is published on the master reaches it there, but is counted as having reached nobody.
func TestServerInboxAtAReplica(t *testing.T) {
	t.Parallel()
	now := []string{"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}
	first := servertest.Redis(t, now...)
	host, port, _ := net.SplitHostPort(first.Addr())
	second := servertest.Redis(t, append(now, "--replicaof", host, port)...)
	follows := func(s *servertest.Server) func() bool {
		rdb := s.Client()
		return func() bool {
			return strings.Contains(rdb.Info(background, "replication").Val(), "master_link_status:up")
		}
	}
	until(t, "the replica follows", follows(second))

	var master atomic.Value // where a name or a virtual address leads to
	master.Store(first.Addr())
	process := func() *core.Locker {
		rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, master.Load().(string))
		}})
		t.Cleanup(func() { _ = rdb.Close() })
		return newLocker(t, rdb)
	}
	holder, a, b := process(), process(), process()
	lock := obtain(t, holder, "k")
	locks := make(chan *core.Lock, 2)
	waiting := func(n int) {
		t.Helper()
		until(t, "the waiters are in line", func() bool {
			s, err := holder.Inspect(background, "k")
			return err == nil && s.Waiting == n
		})
	}
	wait(t, &replica{Locker: a}, "k", locks)
	waiting(1)
	if n, err := first.Client().Wait(background, 1, hang).Result(); err != nil || n != 1 {
		t.Fatalf("WAIT: %d replicas, %v", n, err)
	}

	if err := second.Client().ReplicaOf(background, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	host, port, _ = net.SplitHostPort(second.Addr())
	if err := first.Client().ReplicaOf(background, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	master.Store(second.Addr())
	until(t, "the old master follows", follows(first))
	until(t, "the holder's commands go to the new one", func() bool { return lock.Extend(background, time.Second) == nil })
	wait(t, &replica{Locker: b}, "k", locks)
	waiting(2)
	release(t, lock)
	next := <-locks
	select {
	case other := <-locks:
		t.Fatalf("two holders, with tokens %d and %d", next.Token(), other.Token())
	case <-time.After(300 * time.Millisecond):
	}
	release(t, next)
	within(t, "the last", func() { next = <-locks })
	release(t, next)
	for _, l := range []*core.Locker{holder, a, b} {
		shutdown(t, l)
	}
}
