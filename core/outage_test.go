package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Every public call returns by its context's deadline with a server that accepts and says nothing.
func TestCallsReturnByTheirContextWithASilentServer(t *testing.T) {
	clients := map[string]func(*redis.Options){
		"default":         func(*redis.Options) {},
		"no read timeout": func(o *redis.Options) { o.ReadTimeout = -1; o.WriteTimeout = -1; o.MaxRetries = 5 },
		"context timeout": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	}
	for name, set := range clients {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := servertest.NewBubble(t)
				rdb := b.Client(set)
				l := newLocker(t, rdb)
				lock := acquire(t, l, "k")
				extended := acquire(t, l, "e", core.WithTTL(time.Hour))
				b.Link(rdb).CutDown()
				within := func(what string, limit time.Duration, f func(ctx context.Context) error) {
					t.Helper()
					ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
					defer cancel()
					begin := time.Now()
					err := f(ctx)
					if d := time.Since(begin); d > limit {
						t.Errorf("%s: returned after %v, want %v", what, d, limit)
					}
					wantIs(t, err, core.ErrUnavailable)
				}
				const soon = 200 * time.Millisecond
				within("Acquire", soon, func(ctx context.Context) error { _, err := l.Acquire(ctx, "a"); return err })
				within("TryAcquire", soon, func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "t"); return err })
				within("Do", soon, func(ctx context.Context) error { return l.Do(ctx, "d", func(context.Context) error { return nil }) })
				within("Inspect", soon, func(ctx context.Context) error { _, err := l.Inspect(ctx, "k"); return err })
				within("Extend", soon, func(ctx context.Context) error { return extended.Extend(ctx, time.Minute) })
				within("Release", soon, lock.Release)
				// Contexts that never end: own bounds.
				within("TryAcquire without a deadline", time.Second, func(context.Context) error { _, err := l.TryAcquire(background, "t"); return err })
				within("Inspect without a deadline", time.Second, func(context.Context) error { _, err := l.Inspect(background, "t"); return err })
				within("Acquire with a short wait", time.Second, func(context.Context) error {
					_, err := l.Acquire(background, "t", core.WithWait(10*time.Millisecond))
					return err
				})
				within("Release without a deadline", 5*time.Second, func(context.Context) error { return extended.Release(background) })
				ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
				defer cancel()
				begin := time.Now()
				if err := l.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 200*time.Millisecond {
					t.Errorf("Shutdown: %v after %v", err, time.Since(begin))
				}
				b.Link(rdb).Heal()
				time.Sleep(time.Minute)
				if n := core.Under(l); n != 0 {
					t.Errorf("%d calls under way a minute after the server came back", n)
				}
				if len(b.Redis.Keys()) > 0 {
					for _, k := range b.Redis.Keys() {
						if b.Redis.TTL(k) <= 0 {
							t.Errorf("key %q never expires", k)
						}
					}
				}
			})
		})
	}
}

// A wrong address must not hang a call without a deadline for ever.
func TestAcquireGivesUpOnAnOutageOfALease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errors.New("connection refused"))
		begin := time.Now()
		_, err := r.Acquire(background, "k")
		wantIs(t, err, core.ErrUnavailable)
		if d := time.Since(begin); d < 15*time.Second || d > 17*time.Second {
			t.Errorf("gave up after %v, want about 15s", d)
		}
		begin = time.Now()
		_, err = r.TryAcquire(background, "k")
		wantIs(t, err, core.ErrUnavailable)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("TryAcquire: %v", d)
		}
		r.link.Refuse(nil)
		release(t, acquire(t, r.Locker, "k"))
		// A shorter outage in the middle of a wait is waited out.
		c := newReplica(t, b)
		lock := acquire(t, c.Locker, "k")
		time.AfterFunc(2*time.Second, func() { r.link.Refuse(errors.New("refused")); r.link.Reset() })
		time.AfterFunc(9*time.Second, func() { r.link.Refuse(nil) })
		time.AfterFunc(20*time.Second, func() { release(t, lock) })
		lock, err = r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock)
	})
}

// The clean-up goes on for as long as the last acquire that can have taken effect may hold the lock, not for
// a lease after the last vain attempt to connect.
func TestCleanUpEndsWithTheLeaseThatMayBeThere(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		lock := acquire(t, c.Locker, "k")
		begin := time.Now()
		time.AfterFunc(2*time.Second, func() {
			r.link.Refuse(errors.New("refused"))
			r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequest })
			time.Sleep(time.Second) // a look goes unanswered
			r.link.Reset()
		})
		_, err := r.Acquire(background, "k", core.WithWait(12*time.Second))
		wantIs(t, err, core.ErrUnavailable)
		shutdown(t, r.Locker)
		if d := time.Since(begin); d > 20*time.Second { // with the pauses of the last try, which are random; from the end of the call it would be 27 s
			t.Errorf("Shutdown returned after %v, want a lease after the last command that was sent, at 3s", d)
		}
		release(t, lock)
	})
}

func TestReleaseGoesOnUntilAnExtendedLeaseIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		if err := lock.Extend(background, time.Hour); err != nil {
			t.Fatal(err)
		}
		r.link.Refuse(errors.New("refused"))
		r.link.Reset()
		wantIs(t, lock.Release(background), core.ErrUnavailable)
		time.Sleep(30 * time.Second)
		r.link.Refuse(nil)
		time.Sleep(time.Minute)
		if b.Redis.Exists("k") {
			t.Errorf("key is still there for %v", b.Redis.TTL("k"))
		}
	})
}

func TestExtendTriesAgainSoonAfterALongSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", core.WithTTL(10*time.Minute), core.WithoutRenewal())
		n := 0
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if kind(args) != "renew" {
				return servertest.Pass
			}
			switch n++; {
			case n <= 15:
				return servertest.LoseReply
			case n == 16:
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		begin := time.Now()
		done := make(chan error)
		go func() { done <- lock.Extend(background, 10*time.Minute) }()
		err := <-done
		if d := time.Since(begin); d > 35*time.Second || err != nil {
			t.Errorf("took %v: %v", d, err)
		}
		_ = lock.Release(background)
	})
}

// A server that starts up refuses everything for a while; that passes by itself.
func TestAcquireWaitsWhileTheServerLoads(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		b.Redis.SetError("LOADING Redis is loading the dataset in memory")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, core.ErrUnavailable)
		if !contains(err, `"k"`, "LOADING") || errors.Is(err, core.ErrNotAcquired) {
			t.Errorf("got %v, want the key and Redis' word in the text", err)
		}
		time.AfterFunc(3*time.Second, func() { b.Redis.SetError("") })
		begin := time.Now()
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 3*time.Second || d > 3300*time.Millisecond {
			t.Errorf("got the lock after %v, want 3s and at most one pause", d)
		}
		release(t, lock)
		shutdown(t, r.Locker)
	})
}
