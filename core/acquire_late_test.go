package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Rule 3: an acquire that arrives after its caller gave up and cleaned up finds the tombstone.
func TestDelayedAcquireDoesNotLeakAKey(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		until := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldRequest(until)))
		ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := r.Acquire(ctx, "k")
		wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
		if d := time.Since(begin); d != 300*time.Millisecond {
			t.Errorf("returned after %v, want with its context", d)
		}
		time.Sleep(5 * time.Second) // the clean-up goes out
		close(until)
		time.Sleep(time.Second)
		if b.Redis.Exists("k") {
			t.Error("the delayed acquire took the lock for nobody")
		}
		shutdown(t, r.Locker)
		for _, key := range b.Redis.Keys() {
			if b.Redis.TTL(key) <= 0 {
				t.Errorf("key %q never expires", key)
			}
		}
	})
}

// The same with two acquires: one delayed, the resent one answered, the lock held and released before the
// delayed one arrives.
func TestDelayedAcquireAfterTheReleaseOfItsTenure(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		until := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldRequest(until)))
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock)
		close(until)
		time.Sleep(time.Second)
		if b.Redis.Exists("k") {
			t.Error("the delayed acquire took the lock for nobody")
		}
		shutdown(t, r.Locker)
	})
}

// A delayed acquire while the tenure holds neither shortens the lease nor mints another token.
func TestDelayedAcquireDuringItsTenureChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		until := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldRequest(until)))
		lock, err := r.Acquire(background, "k", holdfast.WithTTL(4*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		before, _ := b.Redis.Get("{k}:~fence")
		close(until)
		time.Sleep(time.Second)
		if got := b.Redis.TTL("k"); got != 59*time.Second {
			t.Errorf("TTL %v, want 59s", got)
		}
		if after, _ := b.Redis.Get("{k}:~fence"); after != before {
			t.Errorf("fence was %q and is %q", before, after)
		}
		release(t, lock)
	})
}

// A cancelled acquire leaves no key, whether the grant is under way or on its way back.
func TestCancelledAcquireLeavesNoKey(t *testing.T) {
	for name, fate := range map[string]func(until chan struct{}) servertest.Verdict{
		"request delayed": func(c chan struct{}) servertest.Verdict { return servertest.HoldRequest(c) },
		"reply delayed":   func(c chan struct{}) servertest.Verdict { return servertest.HoldReply(c) },
		"reply lost":      func(chan struct{}) servertest.Verdict { return servertest.LoseReply },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b)
				warm(t, r)
				until := make(chan struct{})
				r.link.OnCommand(first("acquire", fate(until)))
				ctx, cancel := context.WithCancel(background)
				time.AfterFunc(50*time.Millisecond, cancel)
				time.AfterFunc(100*time.Millisecond, func() { close(until) })
				_, err := r.Acquire(ctx, "k")
				wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
				time.Sleep(2 * time.Second)
				if b.Redis.Exists("k") {
					t.Error("a cancelled acquire left the key behind")
				}
				shutdown(t, r.Locker)
			})
		})
	}
}

// A server that stood still executes what it finds in its sockets. Clean-ups go on for a TTL, or 8 s if that is more; behind a
// longer standstill such a key is there for one lease.
func TestFailedAcquireAcrossAStandstill(t *testing.T) {
	for _, c := range []struct {
		ttl, still, free time.Duration
	}{
		{4 * time.Second, 3 * time.Second, time.Second},
		{4 * time.Second, 6 * time.Second, time.Second},
		{60 * time.Second, 55 * time.Second, time.Second},
		{4 * time.Second, 40 * time.Second, 4 * time.Second},
		{15 * time.Second, 60 * time.Second, 15 * time.Second},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rdb := b.Client(func(o *redis.Options) { // whose own retries do not add to the clean-ups
				o.MaxRetries, o.ReadTimeout = -1, time.Second
			})
			r := &replica{newLocker(t, rdb, holdfast.WithTTL(c.ttl)), rdb, b.Link(rdb)}
			warm(t, r)
			over := time.Now().Add(c.still)
			r.link.CutUp() // connections are made, as the kernel does that, and nothing is read from them
			_, err := r.TryAcquire(background, "k")
			wantIs(t, err, holdfast.ErrUnavailable)
			time.Sleep(time.Until(over))
			r.link.Heal()
			time.Sleep(c.free - 100*time.Millisecond)
			if late := c.free == c.ttl; late != b.Redis.Exists("k") {
				t.Errorf("TTL %v, a standstill of %v: the key is there: %v, want %v", c.ttl, c.still, !late, late)
			}
			time.Sleep(200 * time.Millisecond)
			if b.Redis.Exists("k") {
				t.Errorf("TTL %v, a standstill of %v: the key is there %v later", c.ttl, c.still, c.free)
			}
			release(t, acquire(t, r.Locker, "k"))
			shutdown(t, r.Locker)
		})
	}
}

// A clean-up that is not needed is not sent: the reply that came late was a refusal.
func TestCancelledWaitSendsNoCleanUpAfterARefusal(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, c)
		lock := acquire(t, a.Locker, "k")
		until := make(chan struct{})
		c.link.OnCommand(first("acquire", servertest.HoldReply(until)))
		b.ResetCommands()
		ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
		defer cancel()
		time.AfterFunc(100*time.Millisecond, func() { close(until) })
		_, err := c.TryAcquire(ctx, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, c.Locker)
		if n := c.link.Commands().Total(); n != 1 {
			t.Errorf("got %d commands, want the acquire alone", n)
		}
		release(t, lock)
	})
}

// A grant whose answer took longer than the lease is not a hold.
func TestAnswerAfterTheLeaseIsNotAHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		r.link.DelayDown(150 * time.Millisecond)
		lock, err := r.TryAcquire(background, "k", holdfast.WithTTL(100*time.Millisecond))
		if err == nil {
			t.Fatalf("got a lock with deadline in %v", time.Until(lock.Deadline()))
		}
		wantIs(t, err, holdfast.ErrUnavailable)
		r.link.DelayDown(0)
		time.Sleep(3 * time.Second)
		if b.Redis.Exists("k") {
			t.Error("the key stayed")
		}
		shutdown(t, r.Locker)
	})
	// The process was paused with the answer already in its buffers: a grant that is read when the deadline
	// has passed. Redis may still have the key; it is undone.
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		for _, ago := range []time.Duration{14100 * time.Millisecond, 15 * time.Second, time.Hour} {
			if held := holdfast.JudgeLate(background, r.Locker, "k", ago); held {
				t.Errorf("an answer %v after its command made a lock of 15s", ago)
			}
			time.Sleep(time.Second) // it is undone
		}
		if held := holdfast.JudgeLate(background, r.Locker, "k", 14*time.Second); !held {
			t.Error("an answer 14s after its command did not make a lock of 15s")
		}
		shutdown(t, r.Locker)
		if b.Redis.Exists("k") {
			t.Error("the key stayed")
		}
	})
}

// A grant that comes together with the end of the context is given back: its lock would be born dead.
func TestGrantForAnEndedContextIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		ended, cancel := context.WithCancel(background)
		cancel()
		if holdfast.JudgeLate(ended, r.Locker, "k", 0) {
			t.Error("got a lock with a context that has ended")
		}
		shutdown(t, r.Locker)
		if b.Redis.Exists("k") {
			t.Error("the key stayed")
		}
	})
}
