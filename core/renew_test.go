package holdfast_test

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
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
		fine(t, lock.Err())
		if n, told := b.Commands().Total(), renewals.Load(); min(n, told) < 590 || max(n, told) > 660 {
			t.Errorf("%d renewals in 200 leases, want 3 each; Trace.Renewed came %d times", n, told)
		}
		release(t, lock)
		b.ResetCommands()
		time.Sleep(time.Minute)
		sent(t, b, 0)
	})
}

// Locks share pipelines and one timer. Ten thousand of them: see the test on a real server.
func TestManyLocksWithoutAGoroutineEach(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		const n = 150
		locks := make([]*holdfast.Lock, n)
		before := 0
		for i := range locks {
			locks[i] = acquire(t, r.Locker, "k"+strconv.Itoa(i))
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
			must(t, lock.Err())
			release(t, lock)
		}
	})
}

// A hung renewal of one lock does not keep another from being renewed, nor from being lost in time.
func TestHungRenewalDelaysNoOtherLock(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
		fine(t, c.Err())
		wantIs(t, a.Err(), holdfast.ErrLost)
		_ = a.Release(background)
		release(t, c)
	}, holdfast.WithTTL(2*time.Second))
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
			must(t, lock.Err())
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
		sent(t, b, 0)
		wantIs(t, lock.Release(background), holdfast.ErrLost)

		lock = acquire(t, r.Locker, "e", holdfast.WithoutRenewal(), holdfast.WithTTL(10*time.Second))
		for range 10 {
			time.Sleep(8 * time.Second)
			must(t, lock.Extend(background, 10*time.Second))
		}
		release(t, lock)
	})
}

func TestMaxHoldEndsAHungHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(4*time.Second), holdfast.WithMaxHold(10*time.Second))
		time.Sleep(9900 * time.Millisecond)
		fine(t, lock.Err())
		fine(t, lock.Extend(background, time.Hour))
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
		must(t, err)
		atMost(t, begin, 4*time.Second)
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
			Ended:   func(e holdfast.Event) { mu.Lock(); lost = append(lost, e); mu.Unlock() },
			Renewed: func(e holdfast.Event) { mu.Lock(); renewed[e.Key]++; mu.Unlock() },
		}))
		kept := acquire(t, r.Locker, "kept")
		byContext := acquire(t, r.Locker, "by context").Context(background) // a call that has the context has the lock
		func() { _ = acquire(t, r.Locker, "forgotten") }()
		time.Sleep(500 * time.Millisecond) // between two renewals
		for range 30 {
			runtime.GC()
			time.Sleep(time.Second)
		}
		unheld(t, b, "forgotten")
		mu.Lock()
		if len(lost) != 1 || lost[0].Key != "forgotten" || !contains(lost[0].Err, "unreachable") {
			t.Errorf("Trace.Ended: got %+v", lost)
		}
		if renewed["forgotten"] != 1 || renewed["kept"] < 25 {
			t.Errorf("Trace.Renewed: got %v, want the first of the forgotten lock only", renewed)
		}
		mu.Unlock()
		fine(t, kept.Err())
		fine(t, byContext.Err())
		release(t, kept)
		release(t, holdfast.Held(byContext)[0])
		shutdown(t, r.Locker) // does not wait for the forgotten one
	})
}

func TestLongHoldIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var got []time.Duration
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithTrace(&holdfast.Trace{LongHold: func(e holdfast.Event) {
			got = append(got, e.Elapsed.Round(5*time.Second)) // from one goroutine, the scheduler's
		}}))
		lock := acquire(t, r.Locker, "k")
		time.Sleep(9 * time.Minute)
		release(t, lock)
		if len(got) != 4 || got[0] != time.Minute || got[1] != 2*time.Minute || got[3] != 8*time.Minute {
			t.Errorf("reported after %v, want after 1, 2, 4 and 8 minutes", got)
		}
	})
}

func TestMaxHoldMayBeHuge(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for _, d := range []time.Duration{math.MaxInt64, 4 * 365 * 24 * time.Hour} {
			lock := acquire(t, r.Locker, "k", holdfast.WithMaxHold(d))
			time.Sleep(30 * time.Second)
			fine(t, lock.Err(), d)
			release(t, lock)
		}
	})
}

// A pipeline of a Cluster client is through when all its shards are: one that hangs must not keep the renewals
// of the others.
func TestSilentShardDoesNotLoseTheLocksOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb, other, links := shards(t, b)
		for _, ttl := range []time.Duration{3 * time.Second, 15 * time.Second} {
			l := newLocker(t, rdb, holdfast.WithTTL(ttl))
			// CRC16: "foo" is slot 12182, "bar" 5061
			good, bad := acquire(t, l, "bar"), acquire(t, l, "foo")
			if !b.Redis.Exists("bar") || !other.Redis.Exists("foo") {
				t.Fatal("slots")
			}
			time.Sleep(2 * ttl)
			links[shardTwo].CutUp()
			time.Sleep(2 * ttl)
			fine(t, good.Err(), ttl)
			wantIs(t, bad.Err(), holdfast.ErrLost)
			links[shardTwo].Heal()
			links[shardTwo].Reset()
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
		must(t, lock.Extend(background, time.Minute))
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
