package core_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The master dies under a lock that its replica knows: Sentinel promotes the replica, the holder's renewals
// follow, nobody else gets the lock, and tokens go on rising.
func TestServerSentinelFailoverKeepsAReplicatedLock(t *testing.T) {
	master := servertest.Redis(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := servertest.Redis(t, "--replicaof", host, port)
	sentinel := servertest.Sentinel(t, "main", master)
	watch, direct := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr()}), replica.Client()
	defer watch.Close()
	until(t, "the replica is known", func() bool {
		known, err := watch.Replicas(background, "main").Result()
		link := direct.Info(background, "replication").Val()
		return err == nil && len(known) == 1 && strings.Contains(link, "master_link_status:up")
	})
	client := func() *redis.Client {
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr()}})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	l, rival := newLocker(t, client()), newLocker(t, client())
	lock := obtain(t, l, "k", core.WithTTL(30*time.Second))
	if n, err := master.Client().Wait(background, 1, hang).Result(); err != nil || n != 1 {
		t.Fatalf("WAIT: %d replicas, %v", n, err)
	}

	master.Kill()
	until(t, "the replica is promoted", func() bool {
		return strings.Contains(direct.Info(background, "replication").Val(), "role:master")
	})
	until(t, "the lock is extended on the new master", func() bool { return lock.Extend(background, time.Minute) == nil })
	if _, err := rival.Acquire(background, "k", core.WithWait(time.Second)); err == nil {
		t.Error("two holders after the failover")
	}
	if err := lock.Err(); err != nil {
		t.Fatal(err)
	}
	release(t, lock)
	next := obtain(t, rival, "k")
	if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
	release(t, next)
	shutdown(t, l)
	shutdown(t, rival)
}
