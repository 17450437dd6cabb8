package holdfast_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Sentinel fails over while the old master lives on, as a replica, with all subscriptions. With
// their next look waiters subscribe to the new one.
func TestServerSentinelFailoverWhereTheOldMasterLives(t *testing.T) {
	t.Parallel()
	p := startSentinel(t)
	const n = 4
	var told [n]reported
	var ls []*holdfast.Locker
	for i := range n {
		ls = append(ls, newLocker(t, p.client(t), holdfast.WithTrace(told[i].trace())))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var turns [n]atomic.Int64
	for i, l := range ls {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = l.Do(ctx, "k", func(context.Context) error { turns[i].Add(1); return nil })
			}
		})
	}
	each := func(what string) {
		t.Helper()
		var before [n]int64
		for i := range turns {
			before[i] = turns[i].Load()
		}
		until(t, what, func() bool {
			for i := range turns {
				if turns[i].Load() < before[i]+20 {
					return false
				}
			}
			return true
		})
	}
	each("turns before the failover")
	until(t, "Sentinel begins", func() bool { return p.sentinel.Failover(background, "main").Err() == nil })
	p.promoted(t)
	each("turns after it")
	subscribed := func(s *servertest.Server) int {
		channels, err := s.Client().PubSubChannels(background, "holdfast:inbox:*").Result()
		if err != nil {
			return -1
		}
		return len(channels)
	}
	until(t, "all subscribe to the new master", func() bool { return subscribed(p.replica) == n })
	cancel()
	all.Wait()

	// A waiter is told: it looks by itself every two seconds.
	lock := obtain(t, ls[0], "k")
	got := contend(t, ls[1], "k")
	p.replica.ResetStats(t)
	release(t, lock)
	release(t, won(t, got))
	if n := p.replica.CommandStats(t)["publish"]; n < 1 {
		t.Errorf("%d messages for a hand-over on the new master", n)
	}
	// By themselves, and not when Sentinel, ten seconds later, makes the old master a replica and has it drop them.
	for i := range told {
		if n := told[i].count("subscribing again"); n < 1 || n > 3 {
			t.Errorf("reported: %v", told[i].all())
		}
	}
	for _, l := range ls {
		shutdown(t, l)
	}
}

// A user whose scripts may not publish, on a real server.
func TestServerThatRefusesToPublish(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	var told reported
	process := func() *holdfast.Locker {
		return newLocker(t, aclUser(t, server, "u", "~* &* +@all -publish"), holdfast.WithTrace(told.trace()))
	}
	a, b, admin := process(), process(), server.Client()
	lock := obtain(t, a, "k")
	got := contend(t, b, "k")
	until(t, "the waiter has named its inbox", func() bool {
		return strings.Contains(strings.Join(admin.HVals(background, "{k}:~wait").Val(), " "), "holdfast:inbox")
	})
	release(t, lock)
	if admin.HGet(background, "{k}:~wait", "mute").Val() == "" {
		t.Error("not noticed")
	}
	next := won(t, got)
	rises(t, lock, next)
	got = contend(t, a, "k")
	until(t, "the report", func() bool { return told.count("PUBLISH") == 1 })
	release(t, next)
	release(t, won(t, got))
	if len(told.all()) != 1 {
		t.Errorf("reported: %v", told.all())
	}
	shutdown(t, a)
	shutdown(t, b)
	wantOnlyCompanions(t, admin)
}

// Master and replica change places. The commands of a waiter follow, its inbox stays with the server that is a
// replica now. What is published on the master reaches it there, but is counted as having reached nobody.
func TestServerInboxAtAReplica(t *testing.T) {
	t.Parallel()
	first, second := replicated(t)
	for _, s := range []*servertest.Server{first, second} {
		s.Client().ConfigSet(background, "repl-diskless-sync-delay", "0")
	}

	var master atomic.Value // where a name or a virtual address leads to
	master.Store(first.Addr())
	process := func() *holdfast.Locker {
		rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, master.Load().(string))
		}})
		t.Cleanup(func() { _ = rdb.Close() })
		return newLocker(t, rdb)
	}
	holder, a, b := process(), process(), process()
	lock := obtain(t, holder, "k")
	locks := make(chan *holdfast.Lock, 2)
	waiting := func(n int) {
		t.Helper()
		until(t, "the waiters are in line", func() bool {
			s, err := holder.Inspect(background, "k")
			return err == nil && s.Waiting == n
		})
	}
	wait(t, &replica{Locker: a}, "k", locks)
	waiting(1)
	(&pair{master: first}).replicated(t)
	must(t, second.Client().ReplicaOf(background, "NO", "ONE").Err())
	host, port, _ := net.SplitHostPort(second.Addr())
	must(t, first.Client().ReplicaOf(background, host, port).Err())
	master.Store(second.Addr())
	linked(t, first)
	until(t, "the holder's commands go to the new one", func() bool { return lock.Extend(background, time.Second) == nil })
	wait(t, &replica{Locker: b}, "k", locks)
	waiting(2)
	release(t, lock)
	next := <-locks
	select {
	case other := <-locks:
		t.Fatalf("two holders, with tokens %d and %d", next.Token(), other.Token())
	case <-time.After(300 * time.Millisecond):
	}
	release(t, next)
	within(t, "the last", func() { next = <-locks })
	release(t, next)
	for _, l := range []*holdfast.Locker{holder, a, b} {
		shutdown(t, l)
	}
}

// An operator closes the connections of all subscribers, again and again.
func TestServerInboxIsKilled(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			admin, own := server.Client(), server.Client(func(o *redis.Options) { o.Protocol = protocol })
			holder, waiter := newLocker(t, server.Client()), newLocker(t, own)
			lock := obtain(t, holder, "k")
			locks := make(chan *holdfast.Lock, 1)
			wait(t, &replica{Locker: waiter}, "k", locks)
			for range 4 {
				until(t, "the inbox is open", func() bool {
					channels, err := admin.PubSubChannels(background, "*").Result()
					return err == nil && len(channels) == 1
				})
				must(t, admin.Do(background, "CLIENT", "KILL", "TYPE", "pubsub").Err())
			}
			release(t, lock)
			within(t, "the waiter", func() { release(t, <-locks) })
			shutdown(t, holder)
			shutdown(t, waiter)
		})
	}
}
