package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
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
				each(ms[:lost], forget("k"))
				each(ms[lost:lost+hung], (*servertest.Bubble).Pause)
				var want error
				switch {
				case lost >= 3:
					want = holdfast.ErrLost
				case 5-lost-hung < 3:
					want = holdfast.ErrUnavailable
				}
				if err := lock.Release(background); !errors.Is(err, want) {
					t.Errorf("%d lost, %d hung: got %v, want %v", lost, hung, err, want)
				}
				each(ms, (*servertest.Bubble).Resume)
				shutdown(t, v.Locker)
				ms.have(t, "k", 0)
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
		ms.have(t, "k", 0)
		shutdown(t, v.Locker)
	})
}

// Shutdown returns with its context while masters hang, and leaves nothing behind once they no longer do.
func TestRedLockShutdownWhileMastersHang(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		lock := acquire(t, a.Locker, "k")
		next := b.next(t, "k")
		time.Sleep(3 * time.Second)
		each(ms, (*servertest.Bubble).Pause)
		go func() { _ = lock.Release(background) }()
		time.Sleep(2500 * time.Millisecond)
		for _, v := range []*voter{a, b} {
			ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
			began := time.Now()
			_ = v.Shutdown(ctx)
			atMost(t, began, 100*time.Millisecond)
			cancel()
		}
		wantIs(t, (<-next).err, holdfast.ErrClosed)
		time.Sleep(20 * time.Second)
		each(ms, (*servertest.Bubble).Resume)
		time.Sleep(30 * time.Second)
		if n := holdfast.Under(a.Locker) + holdfast.Under(b.Locker); n != 0 {
			t.Errorf("%d under way", n)
		}
	})
}

// Waiters whom most masters cannot tell look by themselves.
func TestRedLockWaiterWithoutInboxes(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		var told reported
		a, b := ms.voter(t), ms.voter(t, holdfast.WithTrace(told.trace()))
		each(b.links[:2], func(l *servertest.Link) {
			l.OnCommand(func(args []string) servertest.Verdict {
				if strings.EqualFold(args[0], "subscribe") {
					return servertest.LoseRequestAndClose
				}
				return servertest.Pass
			})
		})
		lock := acquire(t, a.Locker, "k")
		next := b.next(t, "k")
		time.Sleep(20 * time.Second)
		began := time.Now()
		release(t, lock)
		lock = got(t, next)
		atMost(t, began, 300*time.Millisecond)
		release(t, lock)
		if all := told.all(); len(all) != 2 {
			t.Errorf("%d NodeErrors for two masters: %v", len(all), all)
		}
		synctest.Wait()
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

// Handlers that end with the forced Shutdown release, and are heard on the way out.
func TestRedLockReleasesOfAForcedShutdown(t *testing.T) {
	for _, n := range []int{1, 3, 40, 40, 40} {
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			v := ms.voter(t, redlock.WithQuarantine(0))
			defer func() { time.Sleep(5 * time.Minute) }()
			var all sync.WaitGroup
			for i := range n {
				lock := acquire(t, v.Locker, fmt.Sprint("k", i))
				all.Go(func() {
					<-lock.Context(background).Done()
					wantIs(t, lock.Release(background), holdfast.ErrClosed, holdfast.ErrLost)
				})
			}
			synctest.Wait()
			each(v.links, func(l *servertest.Link) { l.Delay(time.Millisecond) })
			ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
			defer cancel()
			_ = v.Shutdown(ctx)
			all.Wait()
			time.Sleep(time.Second)
			for i := range n {
				ms.have(t, fmt.Sprint("k", i), 0)
			}
		})
	}
}

// A release that does not get through to one master is sent to that one again: at once where the connection fails, and else
// when a quarter of the lease, at most 1 s, is over. A lock that was renewed leaves no tombstone.
func TestRedLockReleaseIsSentAgain(t *testing.T) {
	for _, reset := range []bool{true, false} {
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			v := ms.voter(t, redlock.WithQuarantine(0))
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
			ms.have(t, "k", 0)
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
