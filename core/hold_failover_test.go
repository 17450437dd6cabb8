package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// One Cluster for all, as it takes seconds to start.
func TestServerClusterFailover(t *testing.T) {
	t.Parallel()
	c := startReplicatedCluster(t)
	_ = t.Run("by hand keeps locks", func(t *testing.T) { failOverByHand(t, c) }) &&
		t.Run("keeps a replicated lock", func(t *testing.T) { failOverReplicated(t, c) })
}

// The master dies under a lock that its replica knows: Sentinel promotes the replica, the holder's renewals
// follow, nobody else gets the lock, and tokens go on rising.
func TestServerSentinelFailoverKeepsAReplicatedLock(t *testing.T) {
	t.Parallel()
	p := startSentinel(t)
	l, rival := newLocker(t, p.client(t)), newLocker(t, p.client(t))
	lock := obtain(t, l, "k", holdfast.WithTTL(30*time.Second), holdfast.WithReplicaAcks(1, 20*time.Second))
	waiter := contend(t, rival, "k")
	p.master.Kill()
	p.promoted(t)
	until(t, "the lock is extended on the new master", func() bool { return lock.Extend(background, time.Minute) == nil })
	handsOver(t, rival, lock, waiter)
	shutdown(t, l)
	shutdown(t, rival)
}

// As above, but the replica has not heard of the lock.
func TestServerSentinelFailoverThatLosesALockTellsSo(t *testing.T) {
	t.Parallel()
	loseInFailover(t, startSentinel(t), "k")
}

const replicatedKey = "b" // slot 3300, on the master with a replica

// replicatedCluster is a Cluster whose first master has a replica.
type replicatedCluster struct {
	pair
	others []*servertest.Server
}

func startReplicatedCluster(t *testing.T) *replicatedCluster {
	t.Helper()
	_, nodes := startCluster(t)
	replica := servertest.Redis(t, clusterNode...)
	meet(t, replica, nodes[0])
	rdb, id := replica.Client(), nodes[0].Client().ClusterMyID(background).Val()
	must(t, rdb.ClusterReplicate(background, id).Err())
	c := &replicatedCluster{pair{master: nodes[0], replica: replica}, nodes[1:]}
	c.client = func(t *testing.T) redis.UniversalClient {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[1].Addr(), nodes[2].Addr()}})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	c.settle(t)
	return c
}

func (c *replicatedCluster) nodes() []*servertest.Server {
	return append([]*servertest.Server{c.master, c.replica}, c.others...)
}

// settle waits until the replica hears its master, and the nodes agree on that and on the epoch: they would not
// vote for the replica otherwise, and the next election is seconds later.
func (c *replicatedCluster) settle(t *testing.T) {
	t.Helper()
	replica, master := c.replica.Client(), c.master.Client()
	var nodes []*redis.Client
	for _, node := range c.nodes() {
		nodes = append(nodes, node.Client())
	}
	until(t, "the Cluster has settled", func() bool {
		if !part(replica, "role:slave") || !part(replica, "master_link_status:up") {
			return false
		}
		id, epochs := master.ClusterMyID(background).Val(), map[string]bool{}
		for _, node := range nodes {
			view := node.ClusterNodes(background).Val()
			if !strings.Contains(view, "slave "+id) || strings.Contains(view, "fail") || strings.Contains(view, "handshake") {
				return false
			}
			_, epoch, _ := strings.Cut(node.ClusterInfo(background).Val(), "cluster_current_epoch:")
			epoch, _, _ = strings.Cut(epoch, "\r\n")
			epochs[epoch] = true
		}
		return len(epochs) == 1
	})
}

// swap is for after a failover: the replica is the master now, and the old master its replica.
func (c *replicatedCluster) swap(t *testing.T) {
	t.Helper()
	c.master, c.replica = c.replica, c.master
	c.settle(t)
}

// The leases of the locks that must survive outlast an election that fails and the next one, 4 s later.
func failOverByHand(t *testing.T, c *replicatedCluster) {
	var told report
	l, rival := newLocker(t, c.client(t), holdfast.WithTTL(9*time.Second), holdfast.WithTrace(told.trace())), newLocker(t, c.client(t))
	lock := obtain(t, l, replicatedKey)
	waiter := contend(t, rival, replicatedKey)

	must(t, c.replica.Client().ClusterFailover(background).Err())
	c.promoted(t)
	c.swap(t)
	awaitRenewal(t, lock)
	keeps(t, c, lock)
	handsOver(t, rival, lock, waiter)
	shutdown(t, l)
	shutdown(t, rival)
	told.wantNoLoss(t)
	wantOnlyCompanions(t, c.master.Client())
}

// The master is killed. A lease that outlasts the failover goes on, one that does not is lost and told so before the rival has
// it.
func failOverReplicated(t *testing.T, c *replicatedCluster) {
	var long, short report
	l, rival := newLocker(t, c.client(t), holdfast.WithTTL(2*time.Second)), newLocker(t, c.client(t))
	lock := obtain(t, l, replicatedKey, holdfast.WithTTL(9*time.Second), holdfast.WithTrace(long.trace()))
	brief := obtain(t, l, "{"+replicatedKey+"}brief", holdfast.WithMaxHold(4*time.Second), holdfast.WithTrace(short.trace()))
	waiter, heir := contend(t, rival, lock.Key()), contend(t, rival, brief.Key())
	c.replicated(t)

	c.isDeadAfter(t, "1000")
	c.master.Kill()
	c.promoted(t)
	next := won(t, heir)
	wantIs(t, brief.Err(), holdfast.ErrLost)
	rises(t, brief, next)
	release(t, next)
	awaitRenewal(t, lock)

	// The old master comes back, without its data but with the slots that it remembers.
	c.master.Start()
	c.swap(t)
	c.isDeadAfter(t, "15000")
	extend(t, lock, 10*time.Second)
	keeps(t, c, lock)
	handsOver(t, rival, lock, waiter)
	wantIs(t, brief.Release(background), holdfast.ErrLost)
	shutdown(t, l)
	shutdown(t, rival)
	long.wantNoLoss(t)
	if len(short.lost) != 1 {
		t.Errorf("Trace.Ended: got %+v, want one loss", short.lost)
	}
}

// isDeadAfter sets for how many ms a node may be silent.
func (c *replicatedCluster) isDeadAfter(t *testing.T, ms string) {
	t.Helper()
	for _, node := range c.nodes() {
		must(t, node.Client().ConfigSet(background, "cluster-node-timeout", ms).Err())
	}
}

// keeps checks that lock is held, and that the new master thinks so too.
func keeps(t *testing.T, c *replicatedCluster, lock *holdfast.Lock) {
	t.Helper()
	must(t, lock.Err())
	rdb := c.master.Client()
	if got := rdb.Get(background, lock.Key()).Val(); got != holdfast.Owner(lock) {
		t.Errorf("the key has %q on the new master, want the holder's", got)
	}
	deadline := lock.Deadline()
	left := rdb.PTTL(background, lock.Key()).Val()
	if late := time.Until(deadline) - left; late > 0 {
		t.Errorf("the new master has the lock for another %v, its holder counts on %v more", left, late)
	}
}

// handsOver checks that nobody can have lock before it is released, and that the waiter can then.
func handsOver(t *testing.T, rival *holdfast.Locker, lock *holdfast.Lock, waiter <-chan *holdfast.Lock) {
	t.Helper()
	var err error
	until(t, "an answer to TryAcquire", func() bool {
		_, err = rival.TryAcquire(background, lock.Key())
		return !errors.Is(err, holdfast.ErrUnavailable)
	})
	wantIs(t, err, holdfast.ErrNotAcquired)
	if len(waiter) > 0 {
		t.Error("two holders after the failover")
	}
	release(t, lock)
	next := won(t, waiter)
	rises(t, lock, next)
	release(t, next)
}

// report collects the losses that a Trace tells of.
type report struct {
	mu   sync.Mutex
	lost []holdfast.Event
	at   time.Time // of the first
}

func (r *report) trace() *holdfast.Trace {
	return &holdfast.Trace{Ended: func(e holdfast.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !errors.Is(e.Err, holdfast.ErrLost) {
			return
		}
		if r.lost = append(r.lost, e); len(r.lost) == 1 {
			r.at = time.Now()
		}
	}}
}

func (r *report) wantNoLoss(t *testing.T) {
	t.Helper()
	if len(r.lost) != 0 {
		t.Errorf("Trace.Ended: got %+v, want none", r.lost)
	}
}

// loseInFailover has the master die with locks on key that its replica has not heard of. On the new master,
// where nobody has them, a rival that waited gets one at once, with a larger token. Its holder hears of it at
// the next renewal, long before the lease would have ended, or when it releases.
func loseInFailover(t *testing.T, p *pair, key string) {
	const ttl = 15 * time.Second // outlasts two elections that fail, 4 s apart
	var told report
	l, rival := newLocker(t, p.client(t), holdfast.WithTTL(ttl), holdfast.WithTrace(told.trace())), newLocker(t, p.client(t))
	p.replicated(t)
	p.replica.CutReplication(t)
	lock, silent := obtain(t, l, key), obtain(t, l, "{"+key+"}silent", holdfast.WithoutRenewal())
	waiter := contend(t, rival, key)
	deadline := lock.Deadline()
	if len(waiter) > 0 {
		t.Error("two holders before the failover")
	}

	p.master.Kill()
	p.promoted(t)
	next := won(t, waiter)
	begin := time.Now()
	rises(t, lock, next)
	within(t, "the holder is told", func() { <-lock.Context(background).Done() })
	wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
	wantIs(t, lock.Err(), holdfast.ErrLost)
	wantIs(t, lock.Release(background), holdfast.ErrLost)
	wantIs(t, silent.Release(background), holdfast.ErrLost)

	shutdown(t, l)
	if len(told.lost) != 2 || told.lost[0].Key != key || told.lost[0].Token != lock.Token() || told.lost[1].Key != silent.Key() {
		t.Fatalf("Trace.Ended: got %+v, want %q with token %d, and then %q, each once", told.lost, key, lock.Token(), silent.Key())
	}
	wantIs(t, told.lost[0].Err, holdfast.ErrLost)
	if !told.at.Before(deadline) {
		t.Error("told at the end of the lease and not by a renewal")
	}
	if late := told.at.Sub(begin); late > ttl/3+holdfast.Patience(ttl) {
		t.Errorf("told %v after the rival had the lock, want a third of the lease, %v", late, ttl/3)
	}

	// What the first holder sent meanwhile did not touch the second one's lock.
	fine(t, next.Err(), "the second holder")
	rdb := p.replica.Client()
	if got := rdb.Get(background, key).Val(); got != holdfast.Owner(next) {
		t.Errorf("the key has %q, want the second holder's", got)
	}
	release(t, next)
	shutdown(t, rival)
	wantOnlyCompanions(t, rdb)
}
