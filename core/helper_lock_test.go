package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// background is for calls that only their own bounds end.
var background = context.Background()

// acquire takes a lock that nobody has.
func acquire(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.TryAcquire(context.Background(), key, opts...)
	must(t, err)
	return lock
}

// obtain is acquire for a machine that may be busy: it waits, and asks again where the servers are silent.
func obtain(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	for end := time.Now().Add(hang); ; {
		lock, err := l.Acquire(background, key, opts...)
		if err == nil {
			return lock
		}
		if !errors.Is(err, holdfast.ErrUnavailable) || time.Now().After(end) {
			t.Fatalf("Acquire(%q): %v", key, err)
		}
	}
}

// vacant takes a lock that nobody has and frees it, on a machine that may be busy: where there was no answer, the clean-up
// of that call has to be waited for.
func vacant(t *testing.T, l *holdfast.Locker, key string) {
	t.Helper()
	lock, err := l.TryAcquire(background, key)
	if errors.Is(err, holdfast.ErrUnavailable) {
		lock = obtain(t, l, key)
	} else if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	release(t, lock)
}

// extend is Extend for a machine that may be busy.
func extend(t *testing.T, lock *holdfast.Lock, d time.Duration) {
	t.Helper()
	until(t, "an answer about "+lock.Key(), func() bool {
		err := lock.Extend(background, d)
		if err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("Extend of %q: %v", lock.Key(), err)
			return true
		}
		return err == nil
	})
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
		fine(t, err)
		to <- lock
	}()
}

// inRow returns k, of a tenure that r may hand over because a call waited for it, and the call behind it.
func inRow(t *testing.T, r *replica, opts ...holdfast.CallOption) (*holdfast.Lock, <-chan result) {
	t.Helper()
	zero := acquire(t, r.Locker, "k")
	one, two := call(background, r, "k", opts...), call(background, r, "k")
	release(t, zero)
	return got(t, one), two
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

// release frees a lock that was not lost. Any goroutine of the test may call it.
func release(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	fine(t, lock.Release(context.Background()))
}

// rises checks that next has a larger token than lock had.
func rises(t *testing.T, lock, next *holdfast.Lock) {
	t.Helper()
	if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
}

// unheld checks that Redis has none of keys.
func unheld(t *testing.T, b *servertest.Bubble, keys ...string) {
	t.Helper()
	synctest.Wait()
	for _, key := range keys {
		if b.Redis.Exists(key) {
			t.Errorf("%s is still held", key)
		}
	}
}

// sent checks how many commands arrived.
func sent(t *testing.T, b *servertest.Bubble, want int64) {
	t.Helper()
	if n := b.Commands().Total(); n != want {
		t.Errorf("%d commands, want %d: %v", n, want, b.Commands())
	}
}

// refused is the HeldError that err is.
func refused(t *testing.T, err error) (held *holdfast.HeldError) {
	t.Helper()
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	return held
}

// notLate fails if lk counts as held for longer than Redis keeps the key.
func notLate(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock) {
	t.Helper()
	if v, _ := b.Redis.Get(lk.Key()); strings.TrimPrefix(v, "=") != holdfast.Owner(lk) {
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
	fine(t, l.Shutdown(ctx))
	if n := holdfast.Under(l); n != 0 {
		t.Errorf("%d calls or holds under way after Shutdown", n)
	}
	if n := holdfast.Scheduled(l); n != 0 {
		t.Errorf("%d holds in the scheduler after Shutdown", n)
	}
}

// await takes a lock, which it may have to wait for.
func await(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.Acquire(background, key, opts...)
	must(t, err)
	return lock
}

// bounded is a context that ends after d.
func bounded(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(background, d)
	t.Cleanup(cancel)
	return ctx
}

// lasted checks that it is want since begin, or up to slack more.
func lasted(t *testing.T, begin time.Time, want time.Duration, slack ...time.Duration) {
	t.Helper()
	if d := time.Since(begin); d < want || d > want+append(slack, 0)[0] {
		t.Errorf("took %v, want %v", d, want)
	}
}

// newClient is newReplica with a client that is set up so.
func newClient(t *testing.T, b *servertest.Bubble, set func(*redis.Options), opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client(set)
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}
