package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// n processes that go on taking one lock: two commands and one push for each hold, in turn, no holder beside another,
// tokens rise.
func TestServerLineCostsTwoCommandsPerHold(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 16, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			server := servertest.Redis(t)
			ls := make([]*holdfast.Locker, n)
			for i := range ls {
				ls[i] = newLocker(t, server.Client())
			}
			// All have their inbox open before anything is counted.
			rdb := server.Client()
			rounds := func(per int, inTurn bool) (order []int) {
				h := &holders{t: t}
				others := n - 1 // that have not yet had all their holds
				var all sync.WaitGroup
				for i, l := range ls {
					all.Go(func() {
						for round := range per {
							lock, err := l.Acquire(background, "k")
							if err != nil {
								t.Error(err)
								return
							}
							h.enter(lock)
							order = append(order, i) // which only the holder does
							if inTurn && !t.Failed() && !comes(func() bool { return rdb.ZCard(background, lineKey).Val() == int64(others) }) {
								t.Errorf("the %d others do not stand in line", others)
							}
							if round == per-1 {
								others--
							}
							fine(t, lock.Release(background))
						}
					})
				}
				all.Wait()
				return order
			}
			rounds(3, false)
			const per = 8
			first := newLocker(t, server.Client())
			lock := obtain(t, first, "k")
			begun := make(chan []int)
			go func() { begun <- rounds(per, true) }()
			until(t, "all stand in line", func() bool {
				state, err := first.Inspect(background, "k")
				return err == nil && state.Waiting == n
			})
			server.ResetStats(t)
			began := time.Now()
			release(t, lock)
			order := <-begun
			seconds := int64(time.Since(began).Seconds())
			stats := server.CommandStats(t)
			// All have sent their first acquire before. On a busy machine some look again: each once in two seconds at most.
			if got, want := stats["evalsha"], int64(2*per*n-n+1); got < want || got > want+want/50+int64(n)*(seconds+2)/2 {
				t.Errorf("%d commands for %d holds, want %d", got, per*n, want)
			}
			if got := stats["publish"]; got > int64(per*n) || got < int64(per*n)/2 {
				t.Errorf("%d pushes for %d holds", got, per*n)
			}
			// First come, first served: once all are in line, each comes again after all others.
			seen, unfair := map[int]int{}, 0
			for at, i := range order[:len(order)/2] {
				if before, ok := seen[i]; ok && at-before > 2*n {
					unfair++
				}
				seen[i] = at
			}
			if unfair > len(order)/50 {
				t.Errorf("%d of %d holds came after more than two rounds", unfair, len(order))
			}
			for _, l := range append(ls, first) {
				shutdown(t, l)
			}
		})
	}
}

func TestServerLineOfMany(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	rdb := server.Client()
	chain(t, 128, 2, "k", func() *holdfast.Locker { return newLocker(t, rdb) })
}

func TestServerLineOfACluster(t *testing.T) {
	t.Parallel()
	rdb, _ := startCluster(t)
	chain(t, 12, 5, "k", func() *holdfast.Locker { return newLocker(t, rdb) })
}

// The shards of a Ring know nothing of each other's channels: waiting is polling.
func TestServerLineOfARing(t *testing.T) {
	t.Parallel()
	a, b := servertest.Redis(t), servertest.Redis(t)
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.Addr(), "b": b.Addr()}})
	defer rdb.Close()
	var told reported
	for i := range 4 { // both shards
		chain(t, 3, 2, fmt.Sprint("k", i), func() *holdfast.Locker {
			return newLocker(t, rdb, holdfast.WithPolling(time.Millisecond, 5*time.Millisecond), holdfast.WithTrace(told.trace()))
		})
	}
	if errs := told.all(); len(errs) != 0 {
		t.Errorf("reported: %v", errs)
	}
	for _, s := range []*servertest.Server{a, b} {
		stats := s.CommandStats(t)
		if stats["subscribe"] != 0 || stats["evalsha"] == 0 {
			t.Errorf("%v", stats)
		}
	}
}

// Users with restricted rights.
func TestServerLineACL(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	user := func(name, rules string) *redis.Client { return aclUser(t, server, name, "~* &* +@all "+rules) }
	const least = "-@all +evalsha +eval +mget +get +getex +getrange +set +del +pttl +pexpire +time +exists +zadd +zrem +zrange " +
		"+zrank +zcard +hget +hset +hdel +publish +subscribe +ping resetchannels &holdfast:inbox:*"
	for _, c := range []struct {
		key            string
		holder, waiter string
		report         string
	}{
		{"may-not-publish", "-publish", "", ""},
		{"may-not-ask-who-listens", "-pubsub", "", ""},
		{"may-not-use-the-channel", "resetchannels", "", ""},
		{"may-not-subscribe", "", "-subscribe", "NOPERM"},
		{"may-not-listen-there", "", "resetchannels", "NOPERM"},
		{"may-do-the-least", least, least, ""},
	} {
		t.Run(c.key, func(t *testing.T) {
			t.Parallel()
			var told reported
			holder := newLocker(t, user(c.key+"-holder", c.holder))
			waiter := newLocker(t, user(c.key+"-waiter", c.waiter), holdfast.WithTrace(told.trace()))
			lock := obtain(t, holder, c.key)
			locks := make(chan *holdfast.Lock, 1)
			wait(t, &replica{Locker: waiter}, c.key, locks)
			until(t, "the waiter is in line", func() bool {
				s, err := holder.Inspect(background, c.key)
				return err == nil && s.Waiting == 1
			})
			if c.report != "" {
				until(t, "the report", func() bool { return told.count("SUBSCRIBE", c.report) == 1 })
			}
			release(t, lock)
			within(t, "the waiter", func() { release(t, <-locks) })
			// A busy machine may be told of an answer that took too long.
			if n := told.count("SUBSCRIBE", "NOPERM"); c.report == "" && n != 0 {
				t.Errorf("reported: %v", told.all())
			}
			shutdown(t, holder)
			shutdown(t, waiter)
		})
	}
}

// chain has n Lockers of make wait for key in turn, each served as soon as the one before it releases, for rounds
// times. Two holders at a time, or a token that does not rise, fail the test, and so do messages that do not arrive: it
// would take minutes.
func chain(t *testing.T, n, rounds int, key string, make func() *holdfast.Locker) {
	t.Helper()
	var all sync.WaitGroup
	var inside, last atomic.Int64
	for range n {
		l := make()
		all.Go(func() {
			for range rounds {
				err := l.Do(background, key, func(ctx context.Context) error {
					n, token := inside.Add(1), holdfast.Held(ctx)[0].Token()
					if before := last.Swap(token); n != 1 || token <= before {
						t.Errorf("%d inside, token %d after %d", n, token, before)
					}
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
			shutdown(t, l)
		})
	}
	within(t, "the work", all.Wait)
}
