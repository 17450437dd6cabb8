package holdfast_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/internal/servertest/testlimit"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// bubble runs fn in virtual time with a server of its own. What fn leaves behind, a goroutine say, fails it.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	testlimit.Turn(&processor)
	defer processor.Unlock()
	synctest.Test(t, func(t *testing.T) {
		fn(t, servertest.NewBubble(t))
		synctest.Wait() // a grant may be here before the answer to the release
	})
}

// solo is a bubble with one process, which the server knows. It must leave nothing behind.
func solo(t *testing.T, fn func(t *testing.T, b *servertest.Bubble, r *replica), opts ...holdfast.Option) {
	t.Helper()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, opts...)
		warm(t, r)
		synctest.Wait() // for a release in the background
		fn(t, b, r)
		empty(t, b, r)
	})
}

// duo is solo with a second process.
func duo(t *testing.T, fn func(t *testing.T, b *servertest.Bubble, r, other *replica), opts ...holdfast.Option) {
	t.Helper()
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		other := newReplica(t, b)
		warm(t, other)
		fn(t, b, r, other)
		empty(t, b, other)
	}, opts...)
}

// processor is for one bubble at a time, which computes all the time, so that tests on real servers go on beside it.
var processor sync.Mutex

// replica is one process: a Locker with a client and a link of its own.
type replica struct {
	*holdfast.Locker
	rdb  *redis.Client
	link *servertest.Link
}

// newReplica starts a process on the server of b.
func newReplica(t *testing.T, b *servertest.Bubble, opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client()
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}

// newInline is newReplica with a client that looks at deadlines while it reads, so that a command runs on its caller's
// goroutine while no other is under way.
func newInline(t *testing.T, b *servertest.Bubble, opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}

// shardOne and shardTwo are the addresses of shards.
const shardOne, shardTwo = "10.0.0.1:1", "10.0.0.2:1"

// shards is a client of a Cluster of two shards, of which one is b, and has the lower slots.
func shards(t *testing.T, b *servertest.Bubble) (rdb *redis.ClusterClient, two *servertest.Bubble, links map[string]*servertest.Link) {
	two = servertest.NewBubble(t)
	links = map[string]*servertest.Link{shardOne: b.NewLink(), shardTwo: two.NewLink()}
	rdb = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{shardOne},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: shardOne}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: shardTwo}}},
			}, nil
		},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return links[addr].Dial(ctx, network, addr)
		},
		PoolSize:                 400,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) })
	return rdb, two, links
}

// newLocker is holdfast.New where nothing is wrong.
func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(rdb, opts...)
	must(t, err)
	return l
}

// leastACL is all that the package's description says that New needs, for keys that begin with job: and no prefix.
const leastACL = "~job:* ~{job:* &holdfast:inbox:* +evalsha +eval +mget +get +getex +getrange +set +del +pttl +pexpire +time " +
	"+exists +zadd +zrem +zrange +zrank +zcard +hget +hset +hdel +pubsub +publish +subscribe +ping +zscore +zcount +zlexcount +zremrangebyscore " +
	"+hmget +hgetall +hlen +wait"

// aclUser returns a client that may do what rules say, and no more.
func aclUser(t *testing.T, server *servertest.Server, name, rules string) *redis.Client {
	t.Helper()
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">secret", "resetchannels", "-@all"}
	for _, rule := range strings.Fields(rules) {
		args = append(args, rule)
	}
	must(t, server.Client().Do(background, args...).Err())
	return server.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = name, "secret", true })
}

// warm teaches the server the scripts, so that every command under test is one EVALSHA.
func warm(t *testing.T, r *replica) {
	t.Helper()
	lock := acquire(t, r.Locker, "warm-up")
	must(t, lock.Extend(background, time.Hour))
	release(t, lock)
}

// openInbox lets r wait in line once, so that it can be told of grants from the first look on.
func openInbox(t *testing.T, b *servertest.Bubble, r *replica) {
	t.Helper()
	other := newReplica(t, b)
	lock := acquire(t, other.Locker, "inbox")
	waits := call(background, r, "inbox")
	release(t, lock)
	release(t, got(t, waits))
	shutdown(t, other.Locker)
}

// empty checks that nothing is left in r's Locker and, after a while, in Redis.
func empty(t *testing.T, b *servertest.Bubble, rs ...*replica) {
	t.Helper()
	for _, r := range rs {
		synctest.Wait()
		if n := holdfast.Turns(r.Locker); n != 0 {
			t.Errorf("%d rows left", n)
		}
		if n := holdfast.Tenures(r.Locker); n != 0 {
			t.Errorf("%d tenures left in the inbox", n)
		}
		shutdown(t, r.Locker)
	}
	time.Sleep(5 * time.Minute)
	if keys := b.Redis.Keys(); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
}

// wantOnlyCompanions fails the test if a lock is left on rdb, or a key that does not expire.
func wantOnlyCompanions(t *testing.T, rdb *redis.Client) {
	t.Helper()
	keys, err := rdb.Keys(background, "*").Result()
	must(t, err)
	for _, key := range keys {
		if !strings.Contains(key, ":~") {
			t.Errorf("%q was left behind", key)
		}
		if ttl := rdb.PTTL(background, key).Val(); ttl == -1 {
			t.Errorf("%q never expires", key)
		}
	}
}
