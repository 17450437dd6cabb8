package core_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// startCluster makes a Cluster of three masters that share the slots, each with args.
func startCluster(t *testing.T, args ...string) (*redis.ClusterClient, []*servertest.Server) {
	t.Helper()
	const slots, n = 16384, 3
	var nodes []*servertest.Server
	var addrs []string
	for i := range n {
		node := servertest.Redis(t, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, args...)...)
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
		rdb := node.Client()
		if err := rdb.ClusterAddSlotsRange(background, i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Do(background, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			meet(t, node, nodes[0])
		}
	}
	for _, node := range nodes {
		rdb := node.Client()
		until(t, "the cluster is whole", func() bool {
			info, err := rdb.ClusterInfo(background).Result()
			known, _ := rdb.ClusterSlots(background).Result() //lint:ignore SA1019 Redis 6.2 has nothing else
			return err == nil && len(known) == n && strings.Contains(info, "cluster_state:ok")
		})
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, nodes
}

// meet makes a and b know each other. A handshake that takes longer than the node timeout is forgotten, perhaps
// on one side only, and not tried again by itself.
func meet(t *testing.T, a, b *servertest.Server) {
	t.Helper()
	knows := func(a, b *redis.Client) bool {
		id, err := b.ClusterMyID(background).Result()
		return err == nil && strings.Contains(a.ClusterNodes(background).Val(), id)
	}
	from, to := a.Client(), b.Client()
	host, port, _ := net.SplitHostPort(b.Addr())
	until(t, "two nodes have met", func() bool {
		if knows(from, to) && knows(to, from) {
			return true
		}
		_ = from.ClusterMeet(background, host, port).Err()
		return false
	})
}

func TestServerClusterHasLocksInAllSlots(t *testing.T) {
	t.Parallel()
	rdb, nodes := startCluster(t)
	l, rival := newLocker(t, rdb, core.WithTTL(2*time.Second)), newLocker(t, rdb)
	keys := []string{"plain", "{tag}ged", "{whole}", "whole", "a{b", "a}b{c}d", "a{b}c{d}", "mit Leerzeichen", "é"}
	for i := range 60 {
		keys = append(keys, core.Key("order", strconv.Itoa(i)))
	}
	locks := map[string]*core.Lock{}
	for _, key := range keys {
		locks[key] = obtain(t, l, key)
		if _, err := rival.TryAcquire(background, key); err == nil {
			t.Errorf("%q: two holders", key)
		}
		if err := locks[key].Extend(background, 3*time.Second); err != nil {
			t.Errorf("%q: Extend: %v", key, err)
		}
		if s, err := rival.Inspect(background, key); err != nil || !s.Held || s.Token != locks[key].Token() {
			t.Errorf("%q: Inspect: %+v, %v", key, s, err)
		}
	}
	for i, node := range nodes {
		if n := node.Client().DBSize(background).Val(); n == 0 {
			t.Errorf("node %d has no key: the test does not reach all slots", i)
		}
	}
	// Renewed across the nodes, in shared pipelines.
	awaitRenewal(t, slices.Collect(maps.Values(locks))...)
	for key, lock := range locks {
		if err := lock.Err(); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		release(t, lock)
		again := obtain(t, rival, key)
		if again.Token() <= lock.Token() {
			t.Errorf("%q: token %d after %d", key, again.Token(), lock.Token())
		}
		release(t, again)
	}
	now := time.Now()
	if ok, err := l.Claim(background, "job", now); err != nil || !ok {
		t.Errorf("Claim: %v, %v", ok, err)
	}
	if ok, err := rival.Claim(background, "job", now); err != nil || ok {
		t.Errorf("Claim of the same tick: %v, %v", ok, err)
	}
	shutdown(t, l)
	shutdown(t, rival)
}

// A slot moves to another node while a lock in it is held: renewals follow, and the fence has moved along.
func TestServerClusterSlotMigration(t *testing.T) {
	t.Parallel()
	rdb, nodes := startCluster(t)
	l := newLocker(t, rdb, core.WithTTL(3*time.Second))
	lock := obtain(t, l, "foo") // slot 12182, on the third node
	const slot = 12182
	from, to := nodes[2].Client(), nodes[0].Client()
	do := func(c *redis.Client, args ...any) any {
		t.Helper()
		v, err := c.Do(background, args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return v
	}
	fromID, toID := do(from, "CLUSTER", "MYID"), do(to, "CLUSTER", "MYID")
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := net.SplitHostPort(nodes[0].Addr())
	// The lock goes first: until the fence follows, scripts that name both keys get TRYAGAIN. Renewals name one.
	do(from, "MIGRATE", host, port, "", 0, 5000, "KEYS", "foo")
	if err := lock.Extend(background, 4*time.Second); err != nil {
		t.Errorf("Extend in the middle of a migration: %v", err)
	}
	ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	if rival, err := newLocker(t, rdb).Acquire(ctx, "foo"); err == nil {
		t.Errorf("two holders, token %d", rival.Token())
	}
	do(from, "MIGRATE", host, port, "", 0, 5000, "KEYS", "{foo}:~fence")
	for _, c := range []*redis.Client{to, from, nodes[1].Client()} {
		do(c, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	awaitRenewal(t, lock)
	if err := lock.Err(); err != nil {
		t.Fatal(err)
	}
	release(t, lock)
	next := obtain(t, l, "foo")
	if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
	release(t, next)
	shutdown(t, l)
}
