package core_test

import (
	"context"
	"errors"
	"testing"
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
		if err := <-waiter; !errors.Is(err, core.ErrClosed) || time.Since(begin) > 0 {
			t.Errorf("the waiter got %v after %v, want ErrClosed at once", err, time.Since(begin))
		}
		_, err := r.TryAcquire(background, "new")
		wantIs(t, err, core.ErrClosed)
		_, err = r.Inspect(background, "new")
		wantIs(t, err, core.ErrClosed)
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
		lock := acquire(t, r.Locker, "k", core.WithTTL(10*time.Second))
		late := acquire(t, r.Locker, "late", core.WithTTL(10*time.Second))
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: got %v, want the context's error", err)
		}
		if !isDone(lock.Context()) {
			t.Error("the context is live after a forced Shutdown")
		}
		wantIs(t, context.Cause(lock.Context()), core.ErrClosed)
		wantIs(t, lock.Err(), core.ErrClosed)
		if errors.Is(lock.Err(), core.ErrLost) {
			t.Error("given up is not lost")
		}
		if _, err := c.TryAcquire(background, "k"); !errors.Is(err, core.ErrNotAcquired) {
			t.Errorf("got %v: the key was freed under a live handler", err)
		}
		release(t, lock) // the handler is through: now it is
		release(t, acquire(t, c.Locker, "k"))
		time.Sleep(9 * time.Second)
		if b.Redis.Exists("late") {
			t.Error("still renewed after Shutdown")
		}
		wantIs(t, late.Release(background), core.ErrLost)
		shutdown(t, r.Locker)
	})
}
