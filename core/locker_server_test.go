package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestServerCostsTwoCommandsPerAcquireAndRelease(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	l := newLocker(t, server.Client())
	release(t, acquire(t, l, "k"))
	server.ResetStats(t)
	const n = 100
	for range n {
		lock := acquire(t, l, "k")
		if _, err := l.TryAcquire(background, "k"); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Fatal(err)
		}
		release(t, lock)
	}
	stats := server.CommandStats(t)
	if stats["evalsha"] != 3*n || stats["eval"] != 0 {
		t.Errorf("%d acquire+release and as many refusals: %d EVALSHA and %d EVAL, want %d and 0", n, stats["evalsha"], stats["eval"], 3*n)
	}
	shutdown(t, l)
}

// What the scripts call on the server for a lock that nobody else wants: as much as it takes to look, to take the lock and
// its token, and to give both up again. A key that is new has no fence, so that its line must be looked at.
func TestServerCallsOfAFreeLock(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	l := newLocker(t, server.Client())
	release(t, acquire(t, l, "k"))
	for what, row := range map[string]struct {
		key  func(i int) string
		want map[string]int64
	}{
		"a key in use": {func(int) string { return "k" }, map[string]int64{"mget": 2, "time": 1, "set": 3, "del": 1}},
		"a new key":    {func(i int) string { return fmt.Sprint("new", i) }, map[string]int64{"mget": 2, "time": 1, "exists": 1, "set": 3, "del": 1}},
	} {
		server.ResetStats(t)
		const n = 100
		for i := range n {
			release(t, acquire(t, l, row.key(i)))
		}
		got := server.CommandStats(t)
		for _, c := range []string{"evalsha", "config|resetstat", "info"} {
			delete(got, c)
		}
		total := int64(0)
		for c, calls := range got {
			total += calls
			if calls != n*row.want[c] {
				t.Errorf("%s: %d %s in %d cycles, want %d", what, calls, c, n, n*row.want[c])
			}
		}
		if what == "a key in use" && total > 7*n {
			t.Errorf("%s: %d calls in %d cycles, want at most 7 each", what, total, n)
		}
	}
	shutdown(t, l)
}

func TestServerRestartEmptyIsNoticedAndTokensRise(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	l := newLocker(t, server.Client(), holdfast.WithTTL(2*time.Second))
	lock := obtain(t, l, "k")
	server.Kill()
	server.Start()
	rival := newLocker(t, server.Client())
	other := obtain(t, rival, "k") // the restart forgot the first holder
	rises(t, lock, other)
	within(t, "the loss", func() { <-lock.Context(background).Done() })
	wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
	wantIs(t, lock.Release(background), holdfast.ErrLost)
	fine(t, other.Err())
	release(t, other)
	shutdown(t, l)
}

// Redis hangs. The holder knows at its deadline, by all three ways, and calls come back.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.Options){
		"default":         func(*redis.Options) {},
		"no timeout":      func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
		"many retries":    func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = 10, 50*time.Millisecond },
		"context timeout": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			l := newLocker(t, server.Client(set), holdfast.WithTTL(2*time.Second))
			lock := obtain(t, l, "k")
			server.Pause()
			for lock.Err() == nil {
				if time.Now().After(lock.Deadline()) && lock.Err() == nil {
					t.Fatal("Err is nil after the deadline")
				}
				time.Sleep(50 * time.Microsecond)
			}
			if lock.Context(background).Err() == nil || !isDone(lock.Context(background)) {
				t.Error("the context is live after a loss")
			}
			within(t, "calls on a hung server", func() {
				_, err := l.TryAcquire(background, "x")
				wantIs(t, err, holdfast.ErrUnavailable)
				ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
				defer cancel()
				_, err = l.Acquire(ctx, "y")
				wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
				_, err = l.Inspect(ctx, "k")
				wantIs(t, err, holdfast.ErrUnavailable)
				wantIs(t, lock.Release(ctx), holdfast.ErrLost)
			})
			server.Resume()
			rival := newLocker(t, server.Client())
			next := obtain(t, rival, "k")
			rises(t, lock, next)
			release(t, next)
			shutdown(t, l)
			if n := server.Client().Exists(background, "k", "x", "y").Val(); n != 0 {
				t.Errorf("%d keys were left behind", n)
			}
		})
	}
}

// The safety test over TCP: the link of the holder is cut, a rival takes over.
func TestServerLinkIsCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*servertest.FaultProxy){
		"requests": func(p *servertest.FaultProxy) { p.CutUp() },
		"replies":  func(p *servertest.FaultProxy) { p.CutDown() },
		"both":     func(p *servertest.FaultProxy) { p.CutUp(); p.CutDown() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			proxy := servertest.Proxy(t, server.Addr())
			l := newLocker(t, proxy.Client(), holdfast.WithTTL(2*time.Second))
			rival := newLocker(t, server.Client(), holdfast.WithTTL(2*time.Second), holdfast.WithPolling(time.Millisecond, 2*time.Millisecond))
			lock := obtain(t, l, "k")
			cut(proxy)
			next, err := rival.Acquire(background, "k")
			must(t, err)
			if !errors.Is(lock.Err(), holdfast.ErrLost) || lock.Context(background).Err() == nil {
				t.Error("two holders")
			}
			rises(t, lock, next)
			proxy.Heal() // what was held back arrives
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			shutdown(t, l)
			fine(t, next.Err())
			release(t, next)
		})
	}
}

// A lease so long that a slow machine does not lose one, renewed often enough to be seen.
func TestServerThreeThousandLocks(t *testing.T) {
	server := servertest.Redis(t)
	rdb := server.Client()
	l := newLocker(t, rdb, holdfast.WithTTL(10*time.Second))
	const n = 3000
	locks := make([]*holdfast.Lock, n)
	eight := func(do func(i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < n; i += 8 {
					fine(t, do(i))
				}
			})
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	eight(func(i int) (err error) { locks[i], err = l.Acquire(background, "k"+strconv.Itoa(i)); return err })
	first, peak := locks[n-1].Deadline(), 0
	until(t, "two renewals of each lock", func() bool {
		peak = max(peak, runtime.NumGoroutine())
		return !slices.ContainsFunc(locks, func(lock *holdfast.Lock) bool {
			return lock.Err() == nil && !lock.Deadline().After(first.Add(5*time.Second))
		})
	})
	if peak > n/10 {
		t.Errorf("%d goroutines for %d locks", peak, n)
	}
	eight(func(i int) error { return locks[i].Err() })
	eight(func(i int) error { return locks[i].Release(background) })
	shutdown(t, l)
	if keys := rdb.Keys(background, "k*").Val(); len(keys) != 0 {
		t.Errorf("%d locks left behind", len(keys))
	}
}

// Mutual exclusion and rising tokens with many goroutines in several Lockers, on a counter that is not safe.
func TestServerMutualExclusion(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	var wg sync.WaitGroup
	inside, last, holds := 0, int64(0), 0
	for range 4 {
		l := newLocker(t, server.Client(), holdfast.WithPolling(time.Millisecond, 3*time.Millisecond))
		for range 4 {
			wg.Go(func() {
				for range 25 {
					fine(t, l.Do(background, "k", func(ctx context.Context) error {
						inside++
						token := holdfast.Held(ctx)[0].Token()
						if inside != 1 || token <= last {
							t.Errorf("%d inside, token %d after %d", inside, token, last)
						}
						last = token
						holds++
						inside--
						return nil
					}))
				}
			})
		}
	}
	within(t, "the work", wg.Wait)
	if holds != 400 {
		t.Errorf("%d holds, want 400", holds)
	}
}

// A server before 6.2, as far as holdfast can tell: it does not know GETEX. Locks that nobody else wants work on it.
func TestServerPingFindsAServerThatIsTooOld(t *testing.T) {
	t.Parallel()
	old, fit := servertest.Redis(t, "--rename-command", "GETEX", ""), servertest.Redis(t)
	const words = "this server does not know GETEX: holdfast needs Redis 6.2 or Valkey 7.2"
	l := newLocker(t, old.Client())
	err := l.Ping(background)
	if wantIs(t, err, holdfast.ErrUnavailable); !contains(err, words) {
		t.Errorf("got %v, want %s", err, words)
	}
	if _, err := l.Inspect(background, "k"); err != nil {
		t.Errorf("Inspect needs no GETEX, but got %v", err)
	}
	shutdown(t, l)

	few := quorum(t, []*redis.Client{old.Client(), servertest.Redis(t, "--rename-command", "GETEX", "").Client(), fit.Client()})
	err = few.Ping(background)
	if wantIs(t, err, holdfast.ErrUnavailable); !contains(err, words) || !contains(err, old.Addr()) {
		t.Errorf("most masters are too old: got %v", err)
	}
	shutdown(t, few)
}

// Servers that know GETEX and refuse it: a replica, and a server whose ACL forbids it to this user.
func TestServerPingWhereGetexIsRefused(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := server.Client()
	for _, allow := range []string{"-getex", "-@write"} {
		rules := []any{"ACL", "SETUSER", "reader", "reset", "on", ">p", "~*", "&*", "+@all", allow}
		must(t, admin.Do(background, rules...).Err())
		l := newLocker(t, server.Client(func(o *redis.Options) { o.Username, o.Password = "reader", "p" }))
		fine(t, l.Ping(background), allow)
		shutdown(t, l)
	}
	if keys := admin.Keys(background, "*").Val(); len(keys) > 0 {
		t.Errorf("Ping wrote %q", keys)
	}
	must(t, admin.Do(background, "REPLICAOF", "127.0.0.1", "1").Err())
	l := newLocker(t, admin)
	fine(t, l.Ping(background))
	shutdown(t, l)
}
