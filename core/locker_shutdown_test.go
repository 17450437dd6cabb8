package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestShutdownWaitsForHoldersAndFailsWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		other := acquire(t, c.Locker, "other")
		waiter := make(chan error)
		go func() {
			_, err := r.Acquire(background, "other")
			waiter <- err
		}()
		time.Sleep(time.Second)
		ended := make(chan error)
		begin := time.Now()
		go func() { ended <- r.Shutdown(background) }()
		go func() { ended <- r.Shutdown(background) }() // twice does no harm
		if err := <-waiter; !errors.Is(err, holdfast.ErrClosed) || time.Since(begin) > 0 {
			t.Errorf("the waiter got %v after %v, want ErrClosed at once", err, time.Since(begin))
		}
		_, err := r.TryAcquire(background, "new")
		wantIs(t, err, holdfast.ErrClosed)
		_, err = r.Inspect(background, "new")
		wantIs(t, err, holdfast.ErrClosed)
		time.Sleep(10 * time.Minute) // the handler takes its time and keeps its lock
		if err := lock.Err(); err != nil || !b.Redis.Exists("k") {
			t.Errorf("during Shutdown: %v", err)
		}
		release(t, lock)
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		if time.Since(begin) < 10*time.Minute {
			t.Error("Shutdown returned before the holder had released")
		}
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
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: got %v, want the context's error", err)
		}
		if !isDone(lock.Context(background)) {
			t.Error("the context is live after a forced Shutdown")
		}
		wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrClosed)
		wantIs(t, lock.Err(), holdfast.ErrClosed)
		if errors.Is(lock.Err(), holdfast.ErrLost) {
			t.Error("given up is not lost")
		}
		if _, err := c.TryAcquire(background, "k"); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v: the key was freed under a live handler", err)
		}
		release(t, lock) // the handler is through: now it is
		release(t, acquire(t, c.Locker, "k"))
		time.Sleep(9 * time.Second)
		if b.Redis.Exists("late") {
			t.Error("still renewed after Shutdown")
		}
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
		if err := r.Shutdown(background); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// The grant is judged after the forced Shutdown has ended all holds: it must not make another.
func TestForcedShutdownAgainstAGrant(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		ended, cancel := context.WithCancel(background)
		cancel()
		ctx := &whenAsked{Context: background, f: func() { _ = r.Shutdown(ended) }}
		lock, err := r.Acquire(ctx, "k")
		if err != nil {
			t.Fatalf("the test has no grant any more: %v", err)
		}
		if ctx.n < 2 {
			t.Fatal("Shutdown did not run, this test shows nothing")
		}
		if lock.Context(background).Err() == nil {
			t.Error("a forced Shutdown left a lock alive")
		}
		wantIs(t, lock.Err(), holdfast.ErrClosed)
		time.Sleep(time.Hour)
		if b.Redis.Exists("k") {
			t.Error("it is renewed after an hour")
		}
		_ = lock.Release(background)
	})
}

// The scheduler is held up in a hook while its other lock is released and the Locker shut down.
func TestNothingIsRenewedAfterShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		block := make(chan struct{})
		r := newReplica(t, b)
		h1 := acquire(t, r.Locker, "expires", holdfast.WithoutRenewal(), holdfast.WithTTL(1*time.Second),
			holdfast.WithTrace(&holdfast.Trace{Lost: func(holdfast.Event) { <-block }}))
		_ = h1
		// deadline of h1: 1s - 12ms - 50ms = 938ms
		h2 := make([]*holdfast.Lock, 0)
		time.Sleep(938*time.Millisecond - 800*time.Millisecond)
		// h2: ttl 2.4s: renewal after 800ms
		h2 = append(h2, acquire(t, r.Locker, "due", holdfast.WithTTL(2400*time.Millisecond)))
		time.Sleep(900 * time.Millisecond) // tick is in the Lost hook
		release(t, h2[0])
		done := make(chan error)
		go func() { done <- r.Shutdown(background) }()
		synctest.Wait()
		b.ResetCommands()
		close(block)
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := holdfast.Under(r.Locker); n != 0 {
			t.Error("under way:", n)
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands for a released lock", n)
		}
	})
}

func TestForcedShutdownEndsBackgroundWork(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(24*time.Hour))
		lock := acquire(t, r.Locker, "k")
		r.link.CutUp()
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		_ = lock.Release(ctx)
		ctx, cancel = context.WithTimeout(background, time.Second)
		defer cancel()
		_ = r.Shutdown(ctx)
		time.Sleep(time.Minute)
		if n := holdfast.Under(r.Locker); n != 0 {
			t.Errorf("%d under way a minute after", n)
		}
		r.link.Heal()
		r.link.Reset()
		time.Sleep(time.Minute)
	})
}
