package holdfast_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestServerReplicaAcks(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb, copied := master.Client(), replica.Client()
	l := newLocker(t, master.Client())
	soon, long := holdfast.WithReplicaAcks(1, 100*time.Millisecond), holdfast.WithReplicaAcks(1, 10*time.Second)

	for range 20 {
		lock := obtain(t, l, "k", long)
		if got := copied.Get(background, "k").Val(); got != holdfast.Owner(lock) {
			t.Fatalf("the replica has %q", got)
		}
		release(t, lock)
	}
	master.ResetStats(t)
	release(t, obtain(t, l, "k", long))
	if n := master.CommandStats(t); n["evalsha"] != 2 || n["eval"] != 1 || n["wait"] != 1 {
		t.Errorf("commands: %v, want the acquisition, a renewal, a WAIT and the release", n)
	}
	fails(t, l, rdb, "two", "1 of 2 replicas acknowledged in 100ms", holdfast.WithReplicaAcks(2, 100*time.Millisecond))

	replica.Pause()
	fails(t, l, rdb, "k", "0 of 1 replicas acknowledged in 100ms", soon)
	// The scripts are not known: the WAIT still follows the write.
	rdb.ScriptFlush(background)
	fails(t, l, rdb, "k", "0 of 1 replicas acknowledged in 100ms", soon)

	// The replica comes back while a call waits, for longer than the client's ReadTimeout.
	for name, set := range map[string]func(*redis.Options){
		"short ReadTimeout": func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond },
		"no ReadTimeout":    func(o *redis.Options) { o.ReadTimeout = -1 },
		"ContextTimeout":    func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = 100*time.Millisecond, true },
	} {
		slow := newLocker(t, master.Client(set))
		time.AfterFunc(500*time.Millisecond, replica.Resume)
		begin := time.Now()
		release(t, obtain(t, slow, "k", long))
		if took := time.Since(begin); took < 400*time.Millisecond {
			t.Errorf("%s: acquired after %v, with the replica paused", name, took)
		}
		shutdown(t, slow)
		replica.Pause()
	}

	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(50*time.Millisecond, cancel)
	begin := time.Now()
	_, err := l.Acquire(ctx, "k", long)
	wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
	lasted(t, begin, 0, 5*time.Second)
	gone(t, rdb, "k")

	replica.Resume()
	release(t, obtain(t, l, "k", long))
	shutdown(t, l)
}

// Whatever connection the grant was written on, the acknowledgement is of it: here another process' release
// grants, while the replica stands still and the waiter's connections have nothing outstanding.
func TestServerGrantFromTheLineIsAcknowledged(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb := master.Client()
	holder, l := newLocker(t, master.Client()), newLocker(t, master.Client())
	for _, paused := range []bool{false, true} {
		lock := obtain(t, holder, "k")
		within := 10 * time.Second
		if paused {
			within = 100 * time.Millisecond
		}
		got := make(chan result)
		go func() {
			lock, err := l.Acquire(background, "k", holdfast.WithReplicaAcks(1, within), holdfast.WithTTL(12*time.Second))
			got <- result{lock: lock, err: err}
		}()
		until(t, "it waits in line", func() bool {
			s, err := holder.Inspect(background, "k")
			return err == nil && s.Waiting == 1
		})
		if paused {
			(&pair{master: master}).replicated(t)
			replica.Pause()
		}
		release(t, lock)
		r := <-got
		if paused {
			wantIs(t, r.err, holdfast.ErrUnavailable)
			if !contains(r.err, "0 of 1 replicas") {
				t.Errorf("got %v, %v, with the replica paused", r.lock, r.err)
			}
			gone(t, rdb, "k")
			replica.Resume()
			continue
		}
		must(t, r.err)
		if left := replica.Client().PTTL(background, "k").Val(); left < 8*time.Second {
			t.Errorf("the replica has a lease of %v, want the whole one", left)
		}
		release(t, r.lock)
	}
	shutdown(t, holder)
	shutdown(t, l)
}

// A renewal is handed on to the replicas also where it changes nothing, and counts as the last write of its
// connection, which never wrote before: a WAIT behind it fails while the replica stands still. Servers before 7.2
// wait for whatever was written by anybody, so that there the offset has to tell.
func TestServerRenewalAlwaysReachesTheReplicas(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb := master.Client()
	rdb.Set(background, "k", "me", time.Minute)
	(&pair{master: master}).replicated(t)
	replica.Pause()
	defer replica.Resume()
	offset := func() string {
		_, rest, _ := strings.Cut(rdb.Info(background, "replication").Val(), "master_repl_offset:")
		n, _, _ := strings.Cut(rest, "\r")
		return n
	}
	for _, lease := range []int{10_000, 60_000, 90_000} {
		before := offset()
		conn := master.Client().Conn()
		defer conn.Close()
		left, err := conn.Eval(background, holdfast.RenewScript.Text(), []string{"k"}, "me", lease).Int64()
		if err != nil || left < 59_000-hang.Milliseconds() {
			t.Fatalf("renew: %v, %v", left, err)
		}
		if before == "" || offset() == before {
			t.Errorf("lease of %d ms: the replication offset stays at %s", lease, before)
		}
		if n, err := conn.Wait(background, 1, 50*time.Millisecond).Result(); err != nil || n != 0 {
			t.Errorf("lease of %d ms: WAIT tells of %d replicas, %v; want none", lease, n, err)
		}
	}
}

// In a Cluster it is the replicas of the key's own master that count.
func TestServerClusterReplicaAcks(t *testing.T) {
	t.Parallel()
	rdb, nodes := startCluster(t)
	replica := servertest.Redis(t, clusterNode...)
	direct := replica.Client()
	nodes[2].Client().ConfigSet(background, "repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(nodes[2].Addr())
	must(t, direct.ClusterMeet(background, host, port).Err())
	id, err := nodes[2].Client().Do(background, "CLUSTER", "MYID").Text()
	must(t, err)
	until(t, "the replica is taken", func() bool { return direct.ClusterReplicate(background, id).Err() == nil })
	linked(t, replica)

	l := newLocker(t, rdb, holdfast.WithReplicaAcks(1, 200*time.Millisecond))
	lock := obtain(t, l, "foo", holdfast.WithReplicaAcks(1, 10*time.Second)) // slot 12182, on the third node
	release(t, lock)
	fails(t, l, rdb, "bar", "0 of 1 replicas acknowledged in 200ms") // slot 5061, on the first
	replica.Pause()
	fails(t, l, rdb, "foo", "0 of 1 replicas acknowledged in 200ms")
	replica.Resume()
	release(t, obtain(t, l, "foo", holdfast.WithReplicaAcks(1, 10*time.Second)))
	shutdown(t, l)
}

// A Ring has as many masters as shards.
func TestServerRingReplicaAcks(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t)
	alone := servertest.Redis(t)
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": master.Addr(), "b": alone.Addr()}})
	defer rdb.Close()
	l := newLocker(t, rdb, holdfast.WithReplicaAcks(1, 10*time.Second))
	on := map[bool]string{}
	for _, key := range []string{"k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "{k}10", "{l}11", "{m}12"} {
		shard, err := rdb.GetShardClientForKey(key)
		must(t, err)
		on[shard.Options().Addr == master.Addr()] = key
	}
	release(t, obtain(t, l, on[true]))
	fails(t, l, rdb, on[false], "0 of 1 replicas", holdfast.WithReplicaAcks(1, 50*time.Millisecond))
	shutdown(t, l)
}

// gone waits until key is free: the clean-up of a failed call goes on behind it.
func gone(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	until(t, key+" is free", func() bool { return rdb.Exists(background, key).Val() == 0 })
}

// fails has an acquisition of key refused for want of replicas, within its own bounds, and nothing left of it.
func fails(t *testing.T, l *holdfast.Locker, rdb redis.UniversalClient, key, cause string, opts ...holdfast.CallOption) {
	t.Helper()
	var err error
	var begin time.Time
	for range 5 { // on a machine that stands still for a second there is no verdict
		var lock *holdfast.Lock
		begin = time.Now()
		if lock, err = l.Acquire(background, key, opts...); lock != nil {
			t.Fatalf("%s: acquired, want %q", key, cause)
		}
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "no answer in time") {
			break
		}
	}
	if !contains(err, key, cause) {
		t.Errorf("%s: got %v, want %q", key, err, cause)
	}
	lasted(t, begin, 0, 5*time.Second)
	gone(t, rdb, key)
}
