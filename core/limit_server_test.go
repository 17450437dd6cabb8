package holdfast_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// On real servers: no holder is ever inside with more than its own limit allows, tokens rise, and nothing is left.
func TestServerLimit(t *testing.T) {
	t.Parallel()
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t)
		crowdOfLimits(t, server.Client(), func() redis.UniversalClient { return server.Client() })
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		client, servers := startCluster(t)
		var master *redis.Client
		for _, s := range servers {
			if rdb := s.Client(); rdb.Get(background, "k").Err() == redis.Nil {
				master = rdb
			}
		}
		crowdOfLimits(t, master, func() redis.UniversalClient { return client })
	})
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		server, _ := replicated(t)
		l := newLocker(t, server.Client(), holdfast.WithReplicaAcks(1, 5*time.Second))
		one, two := obtain(t, l, "k", holdfast.WithLimit(2)), obtain(t, l, "k", holdfast.WithLimit(2))
		release(t, one)
		release(t, two)
		shutdown(t, l)
	})
}

func crowdOfLimits(t *testing.T, rdb *redis.Client, client func() redis.UniversalClient) {
	in := &inside{t: t}
	var all sync.WaitGroup
	for i := range 4 {
		l := newLocker(t, client(), holdfast.WithTTL(20*time.Second)) // of a machine that may be busy
		var calls sync.WaitGroup
		for j := range 8 {
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			calls.Go(func() {
				for range 20 {
					o := []holdfast.CallOption{holdfast.WithLimit(1), holdfast.WithLimit(3), holdfast.WithLimit(3), holdfast.WithShared()}[rnd.IntN(4)]
					lk, err := l.Acquire(background, "k", o)
					if err != nil {
						t.Error(err)
						return
					}
					in.enter(lk)
					time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
					in.leave(lk)
					if err := lk.Release(background); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Go(func() {
			calls.Wait()
			shutdown(t, l)
		})
	}
	all.Wait()
	if in.max < 3 {
		t.Errorf("never more than %d inside", in.max)
	}
	if held := rdb.Exists(background, "k", "{k}:~held", "{k}:~line").Val(); held != 0 {
		t.Errorf("%d keys are left: %v", held, rdb.Keys(background, "*").Val())
	}
}
