package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Rule 3: an acquire whose caller gave up leaves no key, whether it arrives before the clean-up or after it, when it finds the
// tombstone, or was carried out and the answer is late or lost.
func TestCancelledAcquireLeavesNoKey(t *testing.T) {
	held := servertest.HoldRequest
	for name, c := range map[string]struct {
		fate func(<-chan struct{}) servertest.Verdict
		late time.Duration
	}{
		"request delayed":                  {held, 50 * time.Millisecond},
		"request delayed past the cleanup": {held, 5 * time.Second},
		"reply delayed":                    {servertest.HoldReply, 50 * time.Millisecond},
		"reply lost":                       {func(<-chan struct{}) servertest.Verdict { return servertest.LoseReply }, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				holdfast.ByLanes(r.Locker)
				arrives := make(chan struct{})
				r.link.OnCommand(first("acquire", c.fate(arrives)))
				ctx, cancel := context.WithCancel(background)
				time.AfterFunc(50*time.Millisecond, cancel)
				begin := time.Now()
				_, err := r.Acquire(ctx, "k")
				wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
				lasted(t, begin, 50*time.Millisecond)
				time.Sleep(c.late)
				close(arrives)
				time.Sleep(2 * time.Second)
				unheld(t, b, "k")
				shutdown(t, r.Locker)
				for _, key := range b.Redis.Keys() {
					if b.Redis.TTL(key) <= 0 {
						t.Errorf("key %q never expires", key)
					}
				}
			})
		})
	}
}

// One acquire delayed, the resent one answered: the delayed one neither shortens the lease of the hold nor mints another
// token, and takes nothing after the release.
func TestDelayedAcquireOfATenureThatHolds(t *testing.T) {
	for _, released := range []bool{false, true} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			arrives := make(chan struct{})
			r.link.OnCommand(first("acquire", servertest.HoldRequest(arrives)))
			lock := await(t, r.Locker, "k", holdfast.WithTTL(4*time.Second))
			must(t, lock.Extend(background, time.Minute))
			before, _ := b.Redis.Get("{k}:~fence")
			if released {
				release(t, lock)
			}
			close(arrives)
			time.Sleep(time.Second)
			if released {
				unheld(t, b, "k")
				return
			}
			if after, _ := b.Redis.Get("{k}:~fence"); after != before || b.Redis.TTL("k") != 59*time.Second {
				t.Errorf("TTL %v, want 59s; fence was %q and is %q", b.Redis.TTL("k"), before, after)
			}
			release(t, lock)
		})
	}
}

// A server that stood still executes what it finds in its sockets. Clean-ups go on for a minute, and a TTL, or 8 s if that is
// more; behind a longer standstill such a key may be there for one lease.
func TestFailedAcquireAcrossAStandstill(t *testing.T) {
	for _, c := range []struct {
		ttl, still, free time.Duration
	}{
		{4 * time.Second, 3 * time.Second, time.Second},
		{4 * time.Second, 6 * time.Second, time.Second},
		{60 * time.Second, 55 * time.Second, time.Second},
		{4 * time.Second, 40 * time.Second, time.Second},
		{15 * time.Second, 70 * time.Second, time.Second},
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
			time.Sleep(c.free)
			unheld(t, b, "k")
			release(t, acquire(t, r.Locker, "k"))
			shutdown(t, r.Locker)
		})
	}
}

// A clean-up that is not needed is not sent: the reply that came late was a refusal.
func TestCancelledWaitSendsNoCleanUpAfterARefusal(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, newReplica(t, b).Locker, "k")
		late := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldReply(late)))
		b.ResetCommands()
		time.AfterFunc(100*time.Millisecond, func() { close(late) })
		_, err := r.TryAcquire(bounded(t, 50*time.Millisecond), "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, r.Locker)
		if n := r.link.Commands().Total(); n != 1 {
			t.Errorf("got %d commands, want the acquire alone", n)
		}
		release(t, lock)
	})
}

// A grant whose answer took longer than the lease is not a hold, and is undone: it came late, or the process was paused with
// the answer in its buffers. Nor is one that comes together with the end of the context: its lock would be born dead.
func TestAnswerAfterTheLeaseIsNotAHold(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.DelayDown(150 * time.Millisecond)
		lock, err := r.TryAcquire(background, "k", holdfast.WithTTL(100*time.Millisecond))
		if err == nil {
			t.Fatalf("got a lock with deadline in %v", time.Until(lock.Deadline()))
		}
		wantIs(t, err, holdfast.ErrUnavailable)
		r.link.DelayDown(0)
		time.Sleep(3 * time.Second)
		unheld(t, b, "k")
		ended, cancel := context.WithCancel(background)
		cancel()
		for _, c := range []struct {
			ctx  context.Context
			ago  time.Duration
			held bool
		}{
			{background, 14 * time.Second, true}, {background, 14100 * time.Millisecond, false},
			{background, 15 * time.Second, false}, {background, time.Hour, false}, {ended, 0, false},
		} {
			if held := holdfast.JudgeLate(c.ctx, r.Locker, "k", c.ago); held != c.held {
				t.Errorf("an answer %v after its command, with %v: a lock of 15s: %v", c.ago, c.ctx.Err(), held)
			}
			time.Sleep(time.Second)
			unheld(t, b, "k")
		}
	})
}
