package interop

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
)

// Several holders keep others out until the last of them has left, and wait for one of theirs.
func TestSeveralHoldersExcludeForeign(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker()
		for _, o := range []holdfast.CallOption{holdfast.WithLimit(2), holdfast.WithShared()} {
			one, err := l.Acquire(background, e.key, o)
			if err != nil {
				t.Fatal(err)
			}
			two, err := l.Acquire(background, e.key, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, lock := range []*holdfast.Lock{one, two} {
				e.wantRefused(r)
				if err := lock.Release(background); err != nil {
					t.Error(err)
				}
			}
			h := e.obtain(r, e.long)
			if _, err := l.TryAcquire(background, e.key, o); !errors.Is(err, holdfast.ErrNotAcquired) {
				t.Errorf("beside one of theirs: %v", err)
			}
			if err := h.Release(background); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestForeignHolderIsReportedWithItsTimeLeft(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker(holdfast.WithLabel("api-1"))
		since := time.Now()
		h := e.obtain(r, e.long)
		_, err := l.TryAcquire(background, e.key)
		e.wantHeld(err, e.long, since)

		ctx, cancel := context.WithCancel(background)
		defer cancel()
		looked := &holdfast.Trace{Waiting: func(holdfast.Event) { cancel() }}
		_, err = l.Acquire(ctx, e.key, holdfast.WithTrace(looked))
		e.wantHeld(err, e.long, since)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want one that matches the context's error", err)
		}
		if err := h.Release(background); err != nil {
			t.Fatalf("%s: release: %v", r.Name, err)
		}
		lock, err := l.Acquire(background, e.key) // its turn may come before the cancelled call has left the line
		if err != nil {
			t.Fatal(err)
		}
		e.release(lock)
	})
}

func TestAcquireWaitsForForeignRelease(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker()
		h := e.obtain(r, e.long)
		got := e.await(l)
		var released atomic.Bool
		time.AfterFunc(100*time.Millisecond, func() {
			released.Store(true)
			if err := h.Release(background); err != nil {
				t.Errorf("%s: release: %v", r.Name, err)
			}
		})
		lock := <-got
		if !released.Load() {
			t.Error("got the lock before the holder released it")
		}
		e.wantRefused(r)
		e.release(lock)
	})
}

func TestAcquireWaitsForTheEndOfAForeignLease(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker()
		since := time.Now()
		h := e.obtain(r, e.short)
		lock := <-e.await(l)
		if waited := time.Since(since); waited < e.short-2*time.Millisecond {
			t.Errorf("got the lock after %v, within the holder's lease of %v", waited, e.short)
		}
		if err := h.Release(background); !errors.Is(err, peers.ErrNotHeld) {
			t.Errorf("%s: late release: got %v, want ErrNotHeld", r.Name, err)
		}
		if err := lock.Err(); err != nil {
			t.Errorf("after the late release: got %v, want our lock held", err)
		}
		e.wantRefused(r)
		e.release(lock)
	})
}

func TestOurHolderExcludesForeignUntilRelease(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]holdfast.CallOption{
		"without a label": nil,
		"with a label":    {holdfast.WithLabel("api-1")},
	} {
		t.Run(name, func(t *testing.T) {
			eachRival(t, func(t *testing.T, e *env, r rival) {
				lock := e.acquire(e.locker(), opts...)
				e.wantRefused(r)
				if err := lock.Err(); err != nil {
					t.Errorf("after a refused rival: got %v, want our lock held", err)
				}
				e.release(lock)
				h := e.obtain(r, e.long)
				if err := h.Release(background); err != nil {
					t.Errorf("%s: release: %v", r.Name, err)
				}
			})
		})
	}
}

func TestRenewalExcludesForeignBeyondTheLease(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		ttl := 2 * e.short
		lock := e.acquire(e.locker(), holdfast.WithTTL(ttl))
		for range 4 {
			time.Sleep(ttl / 3)
			e.wantRefused(r)
		}
		e.release(lock)
	})
}

func TestForeignFollowsOurLeaseOnlyOnceItIsLost(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		ttl := 2 * e.short
		since := time.Now()
		lock := e.acquire(e.locker(), holdfast.WithTTL(ttl), holdfast.WithoutRenewal())
		for {
			h, err := r.obtain(background, e.rdb, e.key, e.long)
			if errors.Is(err, peers.ErrHeld) {
				if time.Since(since) < ttl-100*time.Millisecond {
					time.Sleep(20 * time.Millisecond)
				} else {
					time.Sleep(time.Millisecond)
				}
				continue
			}
			if lost := lock.Err(); !errors.Is(lost, holdfast.ErrLost) {
				t.Errorf("%s has the key, our lock says %v, want ErrLost", r.Name, lost)
			}
			if err != nil {
				t.Fatalf("%s: obtain: %v", r.Name, err)
			}
			if waited := time.Since(since); waited < ttl-2*time.Millisecond {
				t.Errorf("%s got the key after %v, within our lease of %v", r.Name, waited, ttl)
			}
			if err := lock.Release(background); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("Release: got %v, want ErrLost", err)
			}
			if err := h.Release(background); err != nil {
				t.Errorf("%s: release: %v", r.Name, err)
			}
			return
		}
	})
}

// A key that somebody set without a time to live, by a broken script say, is a lock that never ends.
func TestForeignKeyThatNeverExpires(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"1", "", "api-1:7"} {
		t.Run("value "+value, func(t *testing.T) {
			eachServer(t, func(t *testing.T, e *env) {
				l := e.locker()
				if err := e.rdb.Set(background, e.key, value, 0).Err(); err != nil {
					t.Fatal(err)
				}
				_, err := l.TryAcquire(background, e.key)
				e.wantHeld(err, 0, time.Now())
				state, err := l.Inspect(background, e.key)
				if want := (holdfast.State{Key: e.key, Held: true, Holders: 1, Limit: 1}); err != nil || state != want {
					t.Errorf("Inspect: got %+v, %v, want %+v", state, err, want)
				}
				if now := e.stored(); now.value != value || now.ttl >= 0 {
					t.Errorf("the key became %+v, want %q without a time to live", now, value)
				}

				got := e.await(l)
				if err := e.rdb.Del(background, e.key).Err(); err != nil {
					t.Fatal(err)
				}
				e.release(<-got)
			})
		})
	}
}
