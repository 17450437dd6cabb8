package holdfast_test

import (
	"context"
	"math"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func TestRenewalKeepsTheLockAtThreeCommandsPerLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var renewals atomic.Int64
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithTrace(&holdfast.Trace{Renewed: func(e holdfast.Event) {
			renewals.Add(1)
			if e.Key != "k" || e.TimeLeft <= 2*time.Second || e.TimeLeft > 3*time.Second {
				t.Errorf("Trace.Renewed: %+v", e)
			}
		}}))
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		b.ResetCommands()
		time.Sleep(10*time.Minute + 100*time.Millisecond) // not while a renewal is on its way
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		if n := b.Commands().Total(); n < 590 || n > 660 {
			t.Errorf("%d renewals in 200 leases, want 3 each", n)
		}
		if n := renewals.Load(); n < 590 || n > 660 {
			t.Errorf("Trace.Renewed came %d times", n)
		}
		release(t, lock)
		b.ResetCommands()
		time.Sleep(time.Minute)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands for a released lock", n)
		}
	})
}

// Locks share pipelines and one timer. Ten thousand of them: see the test on a real server.
func TestManyLocksWithoutAGoroutineEach(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		const n = 150
		locks := make([]*holdfast.Lock, n)
		before := 0
		for i := range locks {
			lock, err := r.TryAcquire(background, "k"+strconv.Itoa(i))
			if err != nil {
				t.Fatal(err)
			}
			locks[i] = lock
			if i == 0 {
				before = runtime.NumGoroutine()
			}
		}
		time.Sleep(time.Second)
		if got := runtime.NumGoroutine(); got > before+10 {
			t.Errorf("%d goroutines with one lock, %d with %d", before, got, n)
		}
		peak := 0
		for range 120 { // three leases
			time.Sleep(375 * time.Millisecond)
			peak = max(peak, runtime.NumGoroutine())
		}
		if peak > before+n/4 {
			t.Errorf("%d goroutines at the peak", peak)
		}
		for _, lock := range locks {
			if err := lock.Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, lock := range locks {
			release(t, lock)
		}
		shutdown(t, r.Locker)
	})
}

// A hung renewal of one lock does not keep another from being renewed, nor from being lost in time.
func TestHungRenewalDelaysNoOtherLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(2*time.Second))
		warm(t, r)
		a := acquire(t, r.Locker, "a")
		time.Sleep(300 * time.Millisecond) // another batch
		c := acquire(t, r.Locker, "c")
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if kind(args) == "renew" && args[3] == "a" {
				return servertest.LoseRequest
			}
			return servertest.Pass
		})
		time.Sleep(time.Until(a.Deadline()))
		synctest.Wait() // timers of one moment fire in any order
		if !isDone(a.Context(background)) {
			t.Error("a's Done is open at its deadline")
		}
		time.Sleep(time.Minute)
		if err := c.Err(); err != nil {
			t.Errorf("c was lost with a: %v", err)
		}
		wantIs(t, a.Err(), holdfast.ErrLost)
		_ = a.Release(background)
		release(t, c)
		shutdown(t, r.Locker)
	})
}

func TestTransientErrorsAreRetriedUntilTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var failures atomic.Int64
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) {
			failures.Add(1)
			if e.Key != "k" || e.Err == nil {
				t.Errorf("Trace.NodeError: %+v", e)
			}
		}}))
		lock := acquire(t, r.Locker, "k")
		for _, reply := range []string{"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.", "CLUSTERDOWN Hash slot not served", "ERR unknown"} {
			b.Redis.SetError(reply)
			time.Sleep(1500 * time.Millisecond)
			b.Redis.SetError("")
			time.Sleep(1500 * time.Millisecond)
			if err := lock.Err(); err != nil {
				t.Fatalf("lost to a passing %q: %v", reply, err)
			}
		}
		if n := failures.Load(); n == 0 || n > 200 {
			t.Errorf("%d failures told", n)
		}
		b.Redis.SetError("READONLY You can't write against a read only replica.")
		time.Sleep(3 * time.Second)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		b.Redis.SetError("")
		_ = lock.Release(background)
		shutdown(t, r.Locker)
	})
}

func TestWithoutRenewalEndsWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal(), holdfast.WithTTL(10*time.Second))
		b.ResetCommands()
		if got, want := time.Until(lock.Deadline()), 10*time.Second-holdfast.Margin(10*time.Second); got != want {
			t.Errorf("deadline in %v, want %v", got, want)
		}
		time.Sleep(time.Until(lock.Deadline()))
		synctest.Wait()
		if !isDone(lock.Context(background)) {
			t.Error("Done is open at the deadline")
		}
		wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands", n)
		}
		wantIs(t, lock.Release(background), holdfast.ErrLost)

		lock = acquire(t, r.Locker, "e", holdfast.WithoutRenewal(), holdfast.WithTTL(10*time.Second))
		for range 10 {
			time.Sleep(8 * time.Second)
			if err := lock.Extend(background, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		release(t, lock)
	})
}

func TestMaxHoldEndsAHungHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(4*time.Second), holdfast.WithMaxHold(10*time.Second))
		time.Sleep(9900 * time.Millisecond)
		if err := lock.Err(); err != nil {
			t.Errorf("before the end: %v", err)
		}
		if err := lock.Extend(background, time.Hour); err != nil {
			t.Error(err)
		}
		if d := time.Until(lock.Deadline()); d != 100*time.Millisecond {
			t.Errorf("deadline in %v, want 100ms: MaxHold also bounds Extend", d)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		wantIs(t, lock.Err(), holdfast.ErrLost)
		if !isDone(lock.Context(background)) || !contains(lock.Err(), "WithMaxHold") {
			t.Errorf("got %v, want a loss that names WithMaxHold", lock.Err())
		}
		if !b.Redis.Exists("k") {
			t.Error("freed under a live handler")
		}
		begin := time.Now()
		rival, err := c.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited > 4*time.Second {
			t.Errorf("the rival waited %v beyond MaxHold, more than a lease", waited)
		}
		release(t, rival)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
	})
}

func TestForgottenLockIsNotRenewedForEver(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		var lost []holdfast.Event
		renewed := map[string]int{}
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithTrace(&holdfast.Trace{
			Lost: func(e holdfast.Event) {
				mu.Lock()
				defer mu.Unlock()
				lost = append(lost, e)
			},
			Renewed: func(e holdfast.Event) {
				mu.Lock()
				defer mu.Unlock()
				renewed[e.Key]++
			},
		}))
		kept := acquire(t, r.Locker, "kept")
		byContext := acquire(t, r.Locker, "by context").Context(background) // a call that has the context has the lock
		func() { _ = acquire(t, r.Locker, "forgotten") }()
		time.Sleep(500 * time.Millisecond) // between two renewals
		for range 30 {
			runtime.GC()
			time.Sleep(time.Second)
		}
		if b.Redis.Exists("forgotten") {
			t.Error("a lock that nobody can reach is still renewed")
		}
		mu.Lock()
		if len(lost) != 1 || lost[0].Key != "forgotten" || !contains(lost[0].Err, "unreachable") {
			t.Errorf("Trace.Lost: got %+v", lost)
		}
		if renewed["forgotten"] != 1 || renewed["kept"] < 25 {
			t.Errorf("Trace.Renewed: got %v, want the first of the forgotten lock only", renewed)
		}
		mu.Unlock()
		if err := kept.Err(); err != nil {
			t.Error(err)
		}
		if err := byContext.Err(); err != nil {
			t.Error(err)
		}
		release(t, kept)
		release(t, holdfast.Held(byContext)[0])
		shutdown(t, r.Locker) // does not wait for the forgotten one
	})
}

func TestLongHoldIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		var got []time.Duration
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithTrace(&holdfast.Trace{LongHold: func(e holdfast.Event) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e.Elapsed.Round(5*time.Second))
		}}))
		lock := acquire(t, r.Locker, "k")
		time.Sleep(9 * time.Minute)
		release(t, lock)
		mu.Lock()
		defer mu.Unlock()
		if len(got) != 4 || got[0] != time.Minute || got[1] != 2*time.Minute || got[3] != 8*time.Minute {
			t.Errorf("reported after %v, want after 1, 2, 4 and 8 minutes", got)
		}
	})
}

func TestLongLeaseIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(time.Minute))
		time.Sleep(21 * time.Second)
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		release(t, lock)
		shutdown(t, r.Locker)
	})
}

func TestMaxHoldMayBeHuge(t *testing.T) {
	for _, d := range []time.Duration{math.MaxInt64, 4 * 365 * 24 * time.Hour} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			a := newReplica(t, b)
			time.Sleep(time.Second)
			l := acquire(t, a.Locker, "k", holdfast.WithMaxHold(d))
			time.Sleep(30 * time.Second)
			if err := l.Err(); err != nil {
				t.Errorf("%v: %v", d, err)
			}
			_ = l.Release(background)
		})
	}
}

// A pipeline of a Cluster client is through when all its shards are: one that hangs must not keep the renewals
// of the others.
func TestSilentShardDoesNotLoseTheLocksOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		b2 := servertest.NewBubble(t)
		links := map[string]*servertest.Link{"10.0.0.1:1": b.NewLink(), "10.0.0.2:1": b2.NewLink()}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "10.0.0.1:1"}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "10.0.0.2:1"}}},
				}, nil
			},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return links[addr].Dial(ctx, network, addr)
			},
			PoolSize:                 400,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) }()
		for _, ttl := range []time.Duration{3 * time.Second, 15 * time.Second} {
			l := newLocker(t, rdb, holdfast.WithTTL(ttl))
			// CRC16: "foo" is slot 12182, "bar" 5061
			good, bad := acquire(t, l, "bar"), acquire(t, l, "foo")
			if !b.Redis.Exists("bar") || !b2.Redis.Exists("foo") {
				t.Fatal("slots")
			}
			time.Sleep(2 * ttl)
			links["10.0.0.2:1"].CutUp()
			time.Sleep(2 * ttl)
			if err := good.Err(); err != nil {
				t.Errorf("ttl %v: on the healthy shard: %v", ttl, err)
			}
			wantIs(t, bad.Err(), holdfast.ErrLost)
			links["10.0.0.2:1"].Heal()
			links["10.0.0.2:1"].Reset()
			_ = good.Release(background)
			_ = bad.Release(background)
			time.Sleep(time.Minute)
		}
	})
}

// Rule 2: a renewal that arrives late does not cut a lease that was extended since.
func TestDelayedRenewalDoesNotShortenAnExtendedLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(15*time.Second))
		until := make(chan struct{})
		r.link.OnCommand(first("renew", servertest.HoldRequest(until)))
		time.Sleep(5500 * time.Millisecond) // the first renewal is on its way
		if err := lock.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		close(until)
		time.Sleep(500 * time.Millisecond)
		if got := b.Redis.TTL("k"); got < 59*time.Second {
			t.Errorf("TTL %v, want about 59.5s: the late renewal cut it", got)
		}
		release(t, lock)
	})
}

// A renewal that arrives after the release does not touch the next holder's lease either.
func TestDelayedRenewalDoesNotLengthenALaterHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, a)
		lock := acquire(t, a.Locker, "k", holdfast.WithTTL(15*time.Second))
		until := make(chan struct{})
		a.link.OnCommand(first("renew", servertest.HoldRequest(until)))
		time.Sleep(5500 * time.Millisecond)
		release(t, lock)
		next := acquire(t, c.Locker, "k", holdfast.WithTTL(time.Second), holdfast.WithoutRenewal())
		close(until)
		time.Sleep(500 * time.Millisecond)
		if got := b.Redis.TTL("k"); got != 500*time.Millisecond {
			t.Errorf("TTL of the later hold: %v, want 500ms", got)
		}
		release(t, next)
	})
}
