package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// startSentinel makes a master with a replica that a Sentinel puts in its place when it dies.
func startSentinel(t *testing.T) *pair {
	t.Helper()
	master := servertest.Redis(t)
	p := &pair{master: master, replica: servertest.Replica(t, master)}
	sentinel := servertest.Sentinel(t, "main", master)
	watch := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr()})
	t.Cleanup(func() { _ = watch.Close() })
	until(t, "Sentinel knows the replica", func() bool {
		known, err := watch.Replicas(background, "main").Result()
		return err == nil && len(known) == 1
	})
	p.sentinel = watch
	p.client = func(t *testing.T) redis.UniversalClient {
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr()}})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	return p
}

// The master dies under a lock that its replica knows: Sentinel promotes the replica, the holder's renewals
// follow, nobody else gets the lock, and tokens go on rising.
func TestServerSentinelFailoverKeepsAReplicatedLock(t *testing.T) {
	t.Parallel()
	p := startSentinel(t)
	l, rival := newLocker(t, p.client(t)), newLocker(t, p.client(t))
	lock := obtain(t, l, "k", core.WithTTL(30*time.Second), core.WithReplicaAcks(1, 20*time.Second))

	p.master.Kill()
	p.promoted(t)
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

// As above, but the replica has not heard of the lock.
func TestServerSentinelFailoverThatLosesALockTellsSo(t *testing.T) {
	t.Parallel()
	loseInFailover(t, startSentinel(t), "k")
}
