package holdfast_test

import (
	"net"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// replicated starts a server and a replica of it.
func replicated(t *testing.T) (master, replica *servertest.Server) {
	t.Helper()
	master = servertest.Redis(t, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600")
	host, port, _ := net.SplitHostPort(master.Addr())
	replica = servertest.Redis(t, "--replicaof", host, port)
	linked(t, replica)
	return master, replica
}

// linked waits until a replica follows its master.
func linked(t *testing.T, replica *servertest.Server) {
	t.Helper()
	rdb := replica.Client()
	until(t, "the replica is linked", func() bool {
		return strings.Contains(rdb.Info(background, "replication").Val(), "master_link_status:up")
	})
}

// clusterNode are the arguments of a node. None counts as dead because a busy machine does not let it run for some seconds.
var clusterNode = []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "15000"}

// startCluster makes a Cluster of three masters that share the slots.
func startCluster(t *testing.T) (*redis.ClusterClient, []*servertest.Server) {
	t.Helper()
	const slots, n = 16384, 3
	var nodes []*servertest.Server
	var addrs []string
	for i := range n {
		node := servertest.Redis(t, clusterNode...)
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
		rdb := node.Client()
		must(t, rdb.ClusterAddSlotsRange(background, i*slots/n, (i+1)*slots/n-1).Err())
		must(t, rdb.Do(background, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
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

// pair is a master with a replica, and somebody who promotes the replica when the master dies.
type pair struct {
	master, replica *servertest.Server
	client          func(*testing.T) redis.UniversalClient // follows the promotion
	sentinel        *redis.SentinelClient                  // where there is one
}

// replicated waits until the replica has all that was written so far.
func (p *pair) replicated(t *testing.T) {
	t.Helper()
	if n, err := p.master.Client().Wait(background, 1, hang).Result(); err != nil || n != 1 {
		t.Fatalf("WAIT: %d replicas, %v", n, err)
	}
}

// promoted waits until the replica is the master.
func (p *pair) promoted(t *testing.T) {
	t.Helper()
	rdb := p.replica.Client()
	until(t, "the replica is promoted", func() bool { return part(rdb, "role:master") })
}

// part tells whether what rdb says about its part in replication contains text.
func part(rdb *redis.Client, text string) bool {
	return strings.Contains(rdb.Info(background, "replication").Val(), text)
}

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
