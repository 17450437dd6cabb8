package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// By itself go-redis looks every 10 s for who has the slots of a dead node. A lease cannot wait for that.
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
			l := newLocker(t, rdb, core.WithTTL(ttl))
			var locks []*core.Lock
			for i := range n {
				lock := obtain(t, l, fmt.Sprint("k", i))
				heir.Client().Set(background, lock.Key(), core.Owner(lock), ttl)
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
