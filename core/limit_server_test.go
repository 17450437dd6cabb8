package holdfast_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// What a permit costs, and how fair the line is: scripts of each cycle, and how often the unluckiest and the luckiest waiter had the
// lock. "free" has one caller and no work, the others eight Lockers and holders that work for a millisecond.
func BenchmarkLimit(b *testing.B) {
	server := servertest.Redis(b)
	run := func(name string, waiters int, work time.Duration, opts func(i int) []holdfast.CallOption) {
		b.Run(name, func(b *testing.B) {
			var lockers []*holdfast.Locker
			for range min(8, waiters) {
				l, err := holdfast.New(server.Client())
				if err != nil {
					b.Fatal(err)
				}
				lockers = append(lockers, l)
			}
			counts := make([]int, waiters)
			var left atomic.Int64
			left.Store(int64(b.N))
			before := scripts(server.Client())
			b.ResetTimer()
			var all sync.WaitGroup
			for i := range counts {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						lock, err := lockers[i%len(lockers)].Acquire(background, name, opts(i)...)
						if err != nil {
							b.Error(err)
							return
						}
						time.Sleep(work)
						if err := lock.Release(background); err != nil {
							b.Error(err)
						}
						counts[i]++
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(scripts(server.Client())-before)/float64(b.N), "scripts/op")
			b.ReportMetric(float64(slices.Min(counts)), "least")
			b.ReportMetric(float64(slices.Max(counts)), "most")
			for _, l := range lockers {
				_ = l.Shutdown(background)
			}
		})
	}
	same := func(opts ...holdfast.CallOption) func(int) []holdfast.CallOption {
		return func(int) []holdfast.CallOption { return opts }
	}
	run("free/mutex", 1, 0, same())
	run("free/permit", 1, 0, same(holdfast.WithLimit(5)))
	for _, waiters := range []int{16, 64, 256} {
		for _, n := range []int{1, 5, 50} {
			run(fmt.Sprintf("n=%d/waiters=%d", n, waiters), waiters, time.Millisecond, same(holdfast.WithLimit(n)))
		}
	}
	run("readers/63 and a writer", 64, time.Millisecond, func(i int) []holdfast.CallOption {
		if i == 0 {
			return nil
		}
		return []holdfast.CallOption{holdfast.WithShared()}
	})
	run("readers/as a mutex", 64, time.Millisecond, same())
}

// scripts is how many a server has run.
func scripts(rdb *redis.Client) (n int) {
	for line := range strings.Lines(rdb.Info(background, "commandstats").Val()) {
		var calls int
		for _, name := range []string{"evalsha", "eval"} {
			if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &calls); err == nil {
				n += calls
			}
		}
	}
	return n
}
