package peers

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// eachLibrary runs fn with a Locker of each that this program was built with.
func eachLibrary(t *testing.T, fn func(t *testing.T, lib *Library, open func(Settings) Locker, rdb *redis.Client)) {
	s := servertest.Redis(t)
	rdb := s.Client()
	for _, lib := range slices.Concat(Libraries(), Semaphores(), []*Library{Plain}) {
		t.Run(lib.Name, func(t *testing.T) {
			if !lib.Present() {
				if _, err := lib.Open(Settings{}); err == nil {
					t.Error("it is left out, and was opened")
				}
				t.Skip("left out: " + lib.Module)
			}
			fn(t, lib, func(set Settings) Locker {
				set.Clients, set.Addrs, set.Lease, set.NoLoop = []*redis.Client{rdb}, []string{s.Addr()}, time.Minute, true
				set.Limit = max(set.Limit, 1)
				set.TimeoutFactor, set.WriteTimeout = 1, 30*time.Second // a busy machine is no fault of theirs
				l, err := lib.Open(set)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(l.Close)
				if err := l.Ping(t.Context()); err != nil {
					t.Errorf("Ping: %v", err)
				}
				return l
			}, rdb)
		})
	}
}

func soon(int) time.Duration { return time.Millisecond }

// acquire waits for a lock that will be released. A waiter of rueidislock can miss the message that tells it so, and then waits
// for ever: it is sent again.
func acquire(lib *Library, l Locker, key string) (lock Lock, err error) {
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		lock, err = l.Acquire(ctx, key)
		cancel()
		if lib != Rueidislock || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return lock, err
}

func TestHeldLockIsRefusedAndWaitedFor(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *Library, open func(Settings) Locker, rdb *redis.Client) {
		key := "held:" + lib.Name
		l, other := open(Settings{}), open(Settings{Pause: soon})
		lock, err := l.Try(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if n := rdb.Exists(t.Context(), lib.Key(key)).Val(); n != 1 {
			t.Errorf("there is no key %q", lib.Key(key))
		}
		if _, err := other.Try(t.Context(), key); !errors.Is(err, ErrHeld) {
			t.Errorf("Try beside a holder: got %v, want ErrHeld", err)
		}
		if err := lock.Lost(); err != nil {
			t.Errorf("Lost: got %v of a lock that is held", err)
		}
		if err := lock.Extend(t.Context(), time.Minute); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Extend: %v", err)
		}
		got := make(chan error, 1)
		go func() {
			next, err := acquire(lib, other, key)
			if err == nil {
				err = next.Release(context.Background())
			}
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("Acquire beside a holder: got %v, want it to wait", err)
		case <-time.After(50 * time.Millisecond):
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		if err := <-got; err != nil {
			t.Errorf("Acquire and Release: %v", err)
		}
	})
}

func TestLockOfAnotherIsNeitherReleasedNorExtended(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *Library, open func(Settings) Locker, rdb *redis.Client) {
		if lib == Rueidislock || slices.Contains(Semaphores(), lib) {
			t.Skip("its Release tells nothing, and it extends by itself; or its key has no value")
		}
		key := "another's:" + lib.Name
		for _, set := range []Settings{{}, {ExtendPause: soon}} {
			lock, err := open(set).Try(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			rdb.Set(t.Context(), key, "another", time.Minute)
			if err := lock.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
				t.Errorf("Extend: got %v, want ErrNotHeld", err)
			}
			if err := lock.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("Release: got %v, want ErrNotHeld", err)
			}
			if got := rdb.GetDel(t.Context(), key).Val(); got != "another" {
				t.Errorf("the key has %q", got)
			}
		}
	})
}

func TestValueIsTheCallers(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *Library, open func(Settings) Locker, rdb *redis.Client) {
		if lib == Rueidislock || slices.Contains(Semaphores(), lib) {
			t.Skip("it chooses the value itself")
		}
		key := "value:" + lib.Name
		lock, err := open(Settings{Value: "worker-1"}).Try(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got := rdb.Get(t.Context(), key).Val(); got != "worker-1" {
			t.Errorf("the key has %q, want worker-1", got)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLockOutlivesItsContext(t *testing.T) {
	eachLibrary(t, func(t *testing.T, lib *Library, open func(Settings) Locker, _ *redis.Client) {
		l, key := open(Settings{Pause: soon}), "outliving:"+lib.Name
		take := l.Acquire
		if lib.Bounded {
			take = func(ctx context.Context, key string) (Lock, error) { return Outliving(ctx, key, l.Acquire) }
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		lock, err := take(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		waiting, giveUp := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer giveUp()
		if _, err := take(waiting, key); err == nil && lib != ByHand { // it lets in what gives up
			t.Error("two have the lock")
		}
		cancel()
		time.Sleep(20 * time.Millisecond)
		if err := lock.Lost(); err != nil {
			t.Errorf("the end of the context: got %v, want the lock held", err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if lock, err = take(t.Context(), key); err != nil {
			t.Fatalf("after the release: %v", err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
