package holdfast_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// background is for calls that only their own bounds end.
var background = context.Background()

// acquire takes a lock that nobody has.
func acquire(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return lock
}

// obtain is acquire for a machine that may be busy: it waits.
func obtain(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.Acquire(background, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return lock
}

// inspect is Inspect for a machine that may be busy: where the server is silent it asks again.
func inspect(t *testing.T, l *holdfast.Locker, key string) (s holdfast.State) {
	t.Helper()
	until(t, "an answer about "+key, func() bool {
		var err error
		if s, err = l.Inspect(background, key); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	return s
}

// result is what one call came to.
type result struct {
	lock *holdfast.Lock
	err  error
	at   time.Time
}

// call starts Acquire and returns where its result arrives. It stands in line when call returns.
func call(ctx context.Context, r *replica, key string, opts ...holdfast.CallOption) <-chan result {
	c := make(chan result, 1)
	go func() {
		lock, err := r.Acquire(ctx, key, opts...)
		c <- result{lock, err, time.Now()}
	}()
	synctest.Wait()
	return c
}

// wait has r wait for the lock, in a goroutine that sends it.
func wait(t *testing.T, r *replica, key string, to chan<- *holdfast.Lock, opts ...holdfast.CallOption) {
	go func() {
		lock, err := r.Acquire(background, key, opts...)
		if err != nil {
			t.Errorf("waiting for %s: %v", key, err)
		}
		to <- lock
	}()
}

// got returns the lock that a call came to.
func got(t *testing.T, c <-chan result) *holdfast.Lock {
	t.Helper()
	select {
	case r := <-c:
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.lock
	case <-time.After(time.Minute):
		t.Fatal("a call waits for ever")
		return nil
	}
}

// notYet checks that a call has come to nothing so far.
func notYet(t *testing.T, c <-chan result) {
	t.Helper()
	synctest.Wait()
	select {
	case res := <-c:
		t.Fatalf("came early: %+v", res)
	default:
	}
}

// contend has l acquire key and returns when it has seen the key held. The channel is closed without a lock
// where it fails.
func contend(t *testing.T, l *holdfast.Locker, key string) <-chan *holdfast.Lock {
	t.Helper()
	got, seen := make(chan *holdfast.Lock, 1), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(got)
		trace := &holdfast.Trace{Waiting: func(holdfast.Event) { once.Do(func() { close(seen) }) }}
		lock, err := l.Acquire(t.Context(), key, holdfast.WithTrace(trace))
		if err == nil {
			got <- lock
		} else if t.Context().Err() == nil {
			t.Errorf("Acquire(%q) in a failover: %v", key, err)
		}
	}()
	within(t, "the rival waits", func() { <-seen })
	return got
}

// won waits for the lock that contend is after.
func won(t *testing.T, got <-chan *holdfast.Lock) (lock *holdfast.Lock) {
	t.Helper()
	within(t, "the rival gets the lock", func() { lock = <-got })
	if lock == nil {
		t.FailNow()
	}
	return lock
}

// release frees a lock that was not lost.
func release(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	if err := lock.Release(context.Background()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// notLate fails if lk counts as held for longer than Redis keeps the key.
func notLate(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock) {
	t.Helper()
	if v, _ := b.Redis.Get(lk.Key()); v != holdfast.Owner(lk) {
		t.Errorf("redis has the lock as %q's, not as %q's", v, holdfast.Owner(lk))
	}
	if left, ttl := time.Until(lk.Deadline()), b.Redis.TTL(lk.Key()); left > ttl {
		t.Errorf("the deadline is in %v, the lease ends in %v", left, ttl)
	}
}

// shutdown ends l and fails the test where something stays under way.
func shutdown(t *testing.T, l *holdfast.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if n := holdfast.Under(l); n != 0 {
		t.Errorf("%d calls or holds under way after Shutdown", n)
	}
	if n := holdfast.Scheduled(l); n != 0 {
		t.Errorf("%d holds in the scheduler after Shutdown", n)
	}
}
