package holdfast_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A wrong address must not hang a call without a deadline for ever.
func TestAcquireGivesUpOnAnOutageOfALease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errRefused)
		begin := time.Now()
		_, err := r.Acquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		lasted(t, begin, 15*time.Second, 2*time.Second)
		begin = time.Now()
		_, err = r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		lasted(t, begin, 0, time.Second)
		r.link.Refuse(nil)
		release(t, acquire(t, r.Locker, "k"))
		// A shorter outage in the middle of a wait is waited out.
		c := newReplica(t, b)
		lock := acquire(t, c.Locker, "k")
		time.AfterFunc(2*time.Second, func() { r.link.Refuse(errRefused); r.link.Reset() })
		time.AfterFunc(9*time.Second, func() { r.link.Refuse(nil) })
		time.AfterFunc(20*time.Second, func() { release(t, lock) })
		release(t, await(t, r.Locker, "k"))
	})
}

// The clean-up goes on for as long as the last acquire that can have taken effect may hold the lock, not for
// a lease after the last vain attempt to connect.
func TestCleanUpEndsWithTheLeaseThatMayBeThere(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, newReplica(t, b).Locker, "k")
		begin := time.Now()
		time.AfterFunc(2*time.Second, func() {
			r.link.Refuse(errRefused)
			r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequest })
			time.Sleep(time.Second) // a look goes unanswered
			r.link.Reset()
		})
		_, err := r.Acquire(background, "k", holdfast.WithWait(12*time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, r.Locker)
		lasted(t, begin, 0, 20*time.Second) // a lease after the last command, at 3s, and random pauses; from the end of the call it would be 27 s
		release(t, lock)
	})
}

// A server that starts up refuses everything for a while; that passes by itself.
func TestAcquireWaitsWhileTheServerLoads(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		b.Redis.SetError("LOADING Redis is loading the dataset in memory")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, `"k"`, "LOADING") || errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, want the key and Redis' word in the text", err)
		}
		time.AfterFunc(3*time.Second, func() { b.Redis.SetError("") })
		begin := time.Now()
		release(t, await(t, r.Locker, "k"))
		lasted(t, begin, 3*time.Second, 300*time.Millisecond) // and one pause
	})
}

// What one call has waited for a silent Redis, the next ones do not wait again, except one that comes while nothing is under
// way. A Redis that had nothing to answer is not silent, and one that is far away is there again when it has answered.
func TestSilenceIsWaitedOutOnce(t *testing.T) {
	for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				r.link.Delay(delay)
				n, again := 0, 0
				try := func(want time.Duration, opts ...holdfast.CallOption) {
					t.Helper()
					n++
					begin := time.Now()
					lock, err := r.Acquire(background, fmt.Sprint("k", n), append(opts, holdfast.WithWait(0))...)
					if want == 0 {
						must(t, err)
						release(t, lock)
						return
					}
					wantIs(t, err, holdfast.ErrUnavailable)
					if d := time.Since(begin); d == time.Second && d > want {
						again++
					} else if d != want {
						t.Errorf("call %d took %v, want %v", n, d, want)
					}
				}
				for range 2 {
					time.Sleep(time.Hour) // and so nothing is under way
					try(0)
					r.link.CutUp()
					try(time.Second)
					for range 50 {
						try(10 * time.Millisecond)
						time.Sleep(3 * time.Second)
					}
					try(10*time.Millisecond, holdfast.WithTTL(time.Second))
					r.link.Heal()
					time.Sleep(time.Second)
					try(0)
				}
				if again > 4 {
					t.Errorf("%d of 102 calls waited for a second", again)
				}
			})
		})
	}
}

// A failure of a while ago is no silence: with nothing under way, a call waits for Redis as long as it may.
func TestIdleIsNoSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Delay(20 * time.Millisecond)
		r.link.Refuse(errRefused)
		_, err := r.Acquire(background, "a", holdfast.WithWait(0))
		wantIs(t, err, holdfast.ErrUnavailable)
		time.Sleep(time.Second)
		r.link.Refuse(nil)
		time.Sleep(2 * time.Second)
		release(t, await(t, r.Locker, "b", holdfast.WithWait(0)))
	})
}

// A pool that the application has used up is no silence either.
func TestServerUsedUpPoolIsNoSilence(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	other, rdb := server.Client(), server.Client(func(o *redis.Options) { o.PoolSize = 3 }) // too few to reserve one
	l := newLocker(t, rdb)
	release(t, obtain(t, l, "warm"))
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() { _ = rdb.BLPop(background, time.Minute, fmt.Sprint("list", i)).Err() })
	}
	time.Sleep(100 * time.Millisecond)
	_, err := l.Acquire(background, "a", holdfast.WithWait(0)) // waits for 1 s
	wantIs(t, err, holdfast.ErrUnavailable)
	errs := make(chan error)
	for i := range 3 {
		go func() {
			lock, err := l.Acquire(background, fmt.Sprint("b", i), holdfast.WithWait(0))
			if err == nil {
				err = lock.Release(background)
			}
			errs <- err
		}()
	}
	time.Sleep(50 * time.Millisecond)
	for i := range 3 {
		fine(t, other.LPush(background, fmt.Sprint("list", i), 1).Err())
	}
	for range 3 {
		fine(t, <-errs)
	}
	all.Wait()
	shutdown(t, l)
}
