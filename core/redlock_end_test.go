package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Release tells the three outcomes apart in every mix of what becomes of the lock on five masters.
func TestRedLockReleaseOutcomes(t *testing.T) {
	for lost := 0; lost <= 5; lost++ {
		for hung := 0; lost+hung <= 5; hung++ {
			bubbleOf(t, 5, func(t *testing.T, ms masters) {
				v := ms.voter(t)
				releaseAll(t, acquire(t, v.Locker, "k"))
				lock := acquire(t, v.Locker, "k")
				time.Sleep(time.Millisecond)
				for i, m := range ms {
					switch {
					case i < lost:
						m.Redis.Del("k")
					case i < lost+hung:
						m.Pause()
					}
				}
				err := lock.Release(background)
				var want error
				switch {
				case lost >= 3:
					want = holdfast.ErrLost
				case 5-lost-hung < 3:
					want = holdfast.ErrUnavailable
				}
				if !errors.Is(err, want) {
					t.Errorf("%d lost, %d hung: got %v, want %v", lost, hung, err, want)
				}
				for _, m := range ms {
					m.Resume()
				}
				shutdown(t, v.Locker)
				if n := ms.having("k"); n != 0 {
					t.Errorf("%d lost, %d hung: on %d masters", lost, hung, n)
				}
			})
		}
	}
}

// A renewal that is under way when the lock is released does not bring it back.
func TestRedLockLateRenewalBringsNothingBack(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		releaseAll(t, acquire(t, v.Locker, "k"))
		ms[2].Pause()
		lock := acquire(t, v.Locker, "k") // two masters; the third may get it by a renewal
		time.Sleep(4 * time.Second)
		v.links[2].Reset() // so that the vote is gone
		ms[2].Resume()
		free := make(chan struct{})
		v.links[2].OnCommand(func(args []string) servertest.Verdict {
			if strings.Contains(strings.Join(args, " "), "75000") {
				return servertest.HoldRequest(free)
			}
			return servertest.Pass
		})
		time.Sleep(2 * time.Second) // a renewal
		release(t, lock)
		time.Sleep(3 * time.Second)
		close(free)
		time.Sleep(time.Second)
		if n := ms.having("k"); n != 0 {
			t.Errorf("on %d masters after Release", n)
		}
		shutdown(t, v.Locker)
	})
}

// Shutdown returns with its context while masters hang, and leaves nothing behind once they no longer do.
func TestRedLockShutdownWhileMastersHang(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		lock := acquire(t, a.Locker, "k")
		var all sync.WaitGroup
		all.Go(func() {
			_, err := b.Acquire(background, "k")
			wantIs(t, err, holdfast.ErrClosed)
		})
		time.Sleep(3 * time.Second)
		for _, m := range ms {
			m.Pause()
		}
		all.Go(func() { _ = lock.Release(background) })
		time.Sleep(2500 * time.Millisecond)
		for _, l := range []*holdfast.Locker{a.Locker, b.Locker} {
			ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
			began := time.Now()
			_ = l.Shutdown(ctx)
			if d := time.Since(began); d > 100*time.Millisecond {
				t.Errorf("Shutdown took %v", d)
			}
			cancel()
		}
		all.Wait()
		time.Sleep(20 * time.Second)
		for _, m := range ms {
			m.Resume()
		}
		time.Sleep(30 * time.Second)
		for _, l := range []*holdfast.Locker{a.Locker, b.Locker} {
			if n := holdfast.Under(l); n != 0 {
				t.Errorf("%d under way", n)
			}
		}
	})
}

// Waiters whom most masters cannot tell look by themselves.
func TestRedLockWaiterWithoutInboxes(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a := ms.voter(t)
		var mu sync.Mutex
		var events []error
		b := ms.voter(t, holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { mu.Lock(); events = append(events, e.Err); mu.Unlock() }}))
		for _, l := range b.links[:2] {
			l.OnCommand(func(args []string) servertest.Verdict {
				if strings.EqualFold(args[0], "subscribe") {
					return servertest.LoseRequestAndClose
				}
				return servertest.Pass
			})
		}
		lock := acquire(t, a.Locker, "k")
		got := make(chan time.Time)
		go func() {
			lock, err := b.Acquire(background, "k")
			if err != nil {
				t.Error(err)
				return
			}
			got <- time.Now()
			release(t, lock)
		}()
		time.Sleep(20 * time.Second)
		n := b.links[0].Commands()["evalsha"]
		began := time.Now()
		release(t, lock)
		if d := (<-got).Sub(began); d > 300*time.Millisecond {
			t.Errorf("the next one had the lock after %v", d)
		}
		mu.Lock()
		t.Logf("%d looks", n)
		if len(events) != 2 {
			t.Errorf("%d NodeErrors for two masters, the first: %v", len(events), events[0])
		}
		mu.Unlock()
		synctest.Wait()
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

// Handlers that end with the forced Shutdown release, and are heard on the way out.
func TestRedLockReleasesOfAForcedShutdown(t *testing.T) {
	for _, n := range []int{1, 3, 40, 40, 40} {
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			v := ms.voter(t, holdfast.WithQuarantine(0))
			defer func() { time.Sleep(5 * time.Minute) }()
			var all sync.WaitGroup
			var failed atomic.Int64
			var sample atomic.Value
			for i := range n {
				lock := acquire(t, v.Locker, fmt.Sprint("k", i))
				all.Go(func() {
					<-lock.Context(background).Done()
					if err := lock.Release(background); err != nil {
						failed.Add(1)
						sample.Store(err)
					}
				})
			}
			synctest.Wait()
			for _, l := range v.links {
				l.Delay(time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
			defer cancel()
			_ = v.Shutdown(ctx)
			all.Wait()
			time.Sleep(time.Second)
			left := 0
			for i := range n {
				if ms.having(fmt.Sprint("k", i)) > 0 {
					left++
				}
			}
			if failed.Load() > 0 || left > 0 {
				t.Errorf("%d locks: %d releases failed, such as %v; %d keys are left a second later", n, failed.Load(), sample.Load(), left)
			}
		})
	}
}

// A release that does not get through to one master is sent to that one again: at once where the connection fails, and else
// when a quarter of the lease, at most 1 s, is over. A lock that was renewed leaves no tombstone.
func TestRedLockReleaseIsSentAgain(t *testing.T) {
	for _, reset := range []bool{true, false} {
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			v := ms.voter(t, holdfast.WithQuarantine(0))
			lock := acquire(t, v.Locker, "k")
			time.Sleep(12 * time.Second)
			within := 1200 * time.Millisecond
			v.links[1].OnCommand(first("yield", servertest.LoseRequest))
			release(t, lock)
			if reset {
				time.Sleep(time.Millisecond)
				v.links[1].Reset()
				within = 100 * time.Millisecond
			}
			time.Sleep(within)
			if n := ms.having("k"); n != 0 {
				t.Errorf("%d masters have it after %v", n, within)
			}
			for i, m := range ms {
				for _, key := range m.Redis.Keys() {
					if strings.Contains(key, "gone") {
						t.Errorf("master %d has %s", i, key)
					}
				}
			}
			shutdown(t, v.Locker)
		})
	}
}
