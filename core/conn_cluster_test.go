package holdfast_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestServerClusterHasLocksInAllSlots(t *testing.T) {
	t.Parallel()
	rdb, nodes := startCluster(t)
	l, rival := newLocker(t, rdb, holdfast.WithTTL(9*time.Second)), newLocker(t, rdb)
	keys := []string{"plain", "{tag}ged", "{whole}", "whole", "a{b", "a}b{c}d", "a{b}c{d}", "mit Leerzeichen", "é"}
	for i := range 60 {
		keys = append(keys, holdfast.Key("order", strconv.Itoa(i)))
	}
	locks := map[string]*holdfast.Lock{}
	for _, key := range keys {
		locks[key] = obtain(t, l, key)
		if _, err := rival.TryAcquire(background, key); err == nil {
			t.Errorf("%q: two holders", key)
		}
		extend(t, locks[key], 10*time.Second)
		if s := inspect(t, rival, key); !s.Held || s.Token != locks[key].Token() {
			t.Errorf("%q: Inspect: %+v", key, s)
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
		rises(t, lock, again)
		release(t, again)
	}
	busy := obtain(t, rival, keys[30])
	done := make(chan error, 1)
	go func() {
		done <- l.DoAll(background, keys[:64], func(ctx context.Context) error {
			if n := len(holdfast.Held(ctx)); n != 64 {
				t.Errorf("%d locks of 64", n)
			}
			for _, key := range keys[:64] {
				if _, err := rival.TryAcquire(background, key); err == nil {
					t.Errorf("%q: two holders", key)
				}
			}
			return ctx.Err()
		})
	}()
	until(t, "several wait", func() bool {
		s, err := rival.Inspect(background, keys[30])
		return err == nil && s.Waiting == 1
	})
	release(t, busy)
	within(t, "several in all slots", func() {
		fine(t, <-done)
	})
	for _, key := range keys[:64] {
		vacant(t, rival, key)
	}
	now := time.Now()
	for i, l := range []*holdfast.Locker{l, rival} {
		if ok, err := tick.Claim(bounded(t, hang), l, "job", now); err != nil || ok != (i == 0) {
			t.Errorf("Claim %d: %v, %v", i, ok, err)
		}
	}
	shutdown(t, l)
	shutdown(t, rival)
}

// A slot moves to another node while one or several hold a lock in it and others wait: renewals follow, and the fence moves
// along. Those of a lock with a limit name three keys, so that they have to wait until all have followed.
func TestServerClusterSlotMigration(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]holdfast.CallOption{{}, {holdfast.WithLimit(2)}} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			rdb, nodes := startCluster(t)
			in, n := &inside{t: t}, 1+len(opts)
			l, waiters := newLocker(t, rdb, holdfast.WithTTL(10*time.Second)), newLocker(t, rdb, holdfast.WithTTL(10*time.Second))
			var locks []*holdfast.Lock
			for range n {
				lock := obtain(t, l, "foo", opts...)
				in.enter(lock)
				locks = append(locks, lock)
			}
			got := make(chan *holdfast.Lock, n)
			for range n {
				wait(t, &replica{Locker: waiters}, "foo", got, opts...)
			}
			until(t, "all wait", func() bool {
				state, err := l.Inspect(background, "foo")
				return err == nil && state.Waiting > 0
			})
			m := migrate(t, nodes)
			m.move("foo") // first: until the fence follows, scripts that name both keys get TRYAGAIN
			if n == 1 {
				fine(t, locks[0].Extend(background, 11*time.Second), "Extend in the middle of a migration")
			}
			ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
			if _, err := waiters.Acquire(ctx, "foo", opts...); err == nil {
				t.Error("one more, in the middle of a migration")
			}
			cancel()
			m.end()
			awaitRenewal(t, locks...)
			for _, lock := range locks {
				must(t, lock.Err())
				in.leave(lock)
				release(t, lock)
				within(t, "a waiter", func() {
					next := <-got
					in.enter(next)
					rises(t, lock, next)
					defer release(t, next)
					in.leave(next)
				})
			}
			if state := inspect(t, l, "foo"); state.Held {
				t.Errorf("%+v", state)
			}
			shutdown(t, l)
			shutdown(t, waiters)
		})
	}
}

// migration is of the slot of foo, from the third node to the first.
type migration struct {
	t        *testing.T
	from, to *redis.Client
	nodes    []*servertest.Server
	toID     any
}

const migrating = 12182

func migrate(t *testing.T, nodes []*servertest.Server) *migration {
	t.Helper()
	m := &migration{t: t, from: nodes[2].Client(), to: nodes[0].Client(), nodes: nodes}
	m.toID = m.do(m.to, "CLUSTER", "MYID")
	m.do(m.to, "CLUSTER", "SETSLOT", migrating, "IMPORTING", m.do(m.from, "CLUSTER", "MYID"))
	m.do(m.from, "CLUSTER", "SETSLOT", migrating, "MIGRATING", m.toID)
	return m
}

func (m *migration) do(c *redis.Client, args ...any) any {
	m.t.Helper()
	v, err := c.Do(background, args...).Result()
	if err != nil {
		m.t.Fatalf("%v: %v", args, err)
	}
	return v
}

func (m *migration) move(key string) {
	m.t.Helper()
	host, port, _ := net.SplitHostPort(m.nodes[0].Addr())
	m.do(m.from, "MIGRATE", host, port, "", 0, 5000, "KEYS", key)
}

// end moves all that is left, and tells all nodes.
func (m *migration) end() {
	m.t.Helper()
	for _, key := range m.from.ClusterGetKeysInSlot(background, migrating, 100).Val() {
		m.move(key)
	}
	for _, c := range []*redis.Client{m.to, m.from, m.nodes[1].Client()} {
		m.do(c, "CLUSTER", "SETSLOT", migrating, "NODE", m.toID)
	}
}

// By itself go-redis looks every 10 s for the node that has the slots of a dead one. A lease cannot wait for that.
func TestServerClusterNodeThatDiesIsLookedForAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} { // renewed by itself and in a pipeline
		t.Run(fmt.Sprint(n, " locks"), func(t *testing.T) {
			t.Parallel()
			dies, heir := servertest.Redis(t), servertest.Redis(t)
			var serves atomic.Pointer[servertest.Server]
			serves.Store(dies)
			rdb := redis.NewClusterClient(&redis.ClusterOptions{
				DialerRetries: 1, // so that a pipeline fails before its locks are tried one by one
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					all := redis.ClusterSlot{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: serves.Load().Addr()}}}
					return []redis.ClusterSlot{all}, nil
				},
			})
			defer rdb.Close()
			const ttl = 6 * time.Second
			l := newLocker(t, rdb, holdfast.WithTTL(ttl))
			var locks []*holdfast.Lock
			for i := range n {
				lock := obtain(t, l, fmt.Sprint("k", i))
				heir.Client().Set(background, lock.Key(), holdfast.Owner(lock), ttl)
				locks = append(locks, lock)
			}
			dies.Kill()
			serves.Store(heir)
			awaitRenewal(t, locks...)
			for _, lock := range locks {
				release(t, lock)
			}
			shutdown(t, l)
		})
	}
}
