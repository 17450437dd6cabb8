package holdfast_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Shutdown, even twice, fails calls that wait for other processes or behind their own, refuses new ones, and waits for holders.
func TestShutdownWaitsForHoldersAndFailsWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock, other := acquire(t, r.Locker, "k"), acquire(t, c.Locker, "other")
		waiters := []<-chan result{call(background, r, "other"), call(background, r, "k"), call(background, r, "k")}
		behind := call(background, c, "k")
		time.Sleep(time.Second)
		ended := make(chan error)
		begin := time.Now()
		for range 2 {
			go func() { ended <- r.Shutdown(background) }()
		}
		for _, w := range waiters {
			res := <-w
			wantIs(t, res.err, holdfast.ErrClosed)
			took(t, begin, 0)
		}
		_, err := r.TryAcquire(background, "new")
		wantIs(t, err, holdfast.ErrClosed)
		_, err = r.Inspect(background, "new")
		wantIs(t, err, holdfast.ErrClosed)
		time.Sleep(10 * time.Minute) // the handler takes its time and keeps its lock
		fine(t, lock.Err())
		notLate(t, b, lock)
		release(t, lock)
		for range 2 {
			fine(t, <-ended)
		}
		took(t, begin, 10*time.Minute)
		release(t, got(t, behind))
		release(t, other)
		shutdown(t, r.Locker)
	})
}

func TestForcedShutdownNeverFreesAKeyUnderALiveHandler(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(10*time.Second))
		late := acquire(t, r.Locker, "late", holdfast.WithTTL(10*time.Second))
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		wantIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
		if !isDone(lock.Context(background)) {
			t.Error("the context is live after a forced Shutdown")
		}
		wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrClosed)
		wantIs(t, lock.Err(), holdfast.ErrClosed)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		_, err := c.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
		released := lock.Release(background) // the handler is through: now it is
		wantIs(t, released, holdfast.ErrClosed)
		wantIs(t, released, holdfast.ErrLost)
		release(t, acquire(t, c.Locker, "k"))
		time.Sleep(9 * time.Second)
		unheld(t, b, "late")
		wantIs(t, late.Release(background), holdfast.ErrLost)
		shutdown(t, r.Locker)
	})
}

// A program that forgets a lock learns from Shutdown which.
func TestForcedShutdownNamesTheLocks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithPrefix("shop:"))
		for i := range 10 {
			acquire(t, r.Locker, fmt.Sprint("order:", i))
		}
		release(t, acquire(t, r.Locker, "released"))
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		err := r.Shutdown(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		if !contains(err, `"shop:order:0"`, `"shop:order:7"`, "and 2 more") || contains(err, "released\"") {
			t.Errorf("got %v", err)
		}
		fine(t, r.Shutdown(background))
	})
}

// The grant is judged after the forced Shutdown has ended all holds: it must not make another.
func TestForcedShutdownAgainstAGrant(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		ctx := &whenAsked{Context: background, f: func() { _ = r.Shutdown(ended) }}
		lock, err := r.Acquire(ctx, "k")
		must(t, err)
		if ctx.n < 2 || lock.Context(background).Err() == nil {
			t.Errorf("a forced Shutdown left a lock alive, or did not run: the context was asked %d times", ctx.n)
		}
		wantIs(t, lock.Err(), holdfast.ErrClosed)
		time.Sleep(time.Hour)
		unheld(t, b, "k")
		_ = lock.Release(background)
	})
}

// The scheduler is held up in a hook while its other lock is released and the Locker shut down.
func TestNothingIsRenewedAfterShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		block := make(chan struct{})
		r := newReplica(t, b)
		_ = acquire(t, r.Locker, "expires", holdfast.WithoutRenewal(), holdfast.WithTTL(time.Second), // its deadline is in 938 ms
			holdfast.WithTrace(&holdfast.Trace{Ended: func(holdfast.Event) { <-block }}))
		time.Sleep(138 * time.Millisecond)
		lock := acquire(t, r.Locker, "due", holdfast.WithTTL(2400*time.Millisecond)) // renewed after 800 ms
		time.Sleep(900 * time.Millisecond)                                           // the scheduler is in the hook
		release(t, lock)
		done := make(chan error)
		go func() { done <- r.Shutdown(background) }()
		synctest.Wait()
		b.ResetCommands()
		close(block)
		fine(t, <-done)
		synctest.Wait()
		if n := holdfast.Under(r.Locker); n != 0 {
			t.Error("under way:", n)
		}
		sent(t, b, 0)
	})
}
