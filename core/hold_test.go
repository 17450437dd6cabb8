package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The safety test: the holder's link is cut, a rival polls, and at the rival's first success the holder must
// know. One run per way of cutting and of setting up the client.
func TestHolderKnowsBeforeARivalHolds(t *testing.T) {
	t.Parallel()
	cuts := map[string]struct {
		do   func(*servertest.Link)
		late time.Duration // what is on its way arrives within so long of the link's repair
	}{
		"requests":         {func(l *servertest.Link) { l.CutUp() }, 3 * time.Second},
		"replies":          {func(l *servertest.Link) { l.CutDown() }, 3 * time.Second},
		"both":             {func(l *servertest.Link) { l.CutUp(); l.CutDown() }, 3 * time.Second},
		"connection reset": {func(l *servertest.Link) { l.Refuse(errRefused); l.Reset() }, 3 * time.Second},
		"slow":             {func(l *servertest.Link) { l.DelayDown(20 * time.Second) }, 25 * time.Second},
	}
	clients := map[string]func(*redis.Options){
		"default":         func(*redis.Options) {},
		"no read timeout": func(o *redis.Options) { o.ReadTimeout = -1; o.WriteTimeout = -1 },
		"many retries":    func(o *redis.Options) { o.MaxRetries = 10; o.ReadTimeout = 100 * time.Millisecond },
		"context timeout": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"one connection":  func(o *redis.Options) { o.PoolSize = 4 },
	}
	for name, cut := range cuts {
		for client, set := range clients {
			ttls := []time.Duration{time.Second}
			if client == "default" {
				ttls = append(ttls, 100*time.Millisecond, 15*time.Second)
			}
			for _, ttl := range ttls {
				t.Run(name+"/"+client+"/"+ttl.String(), func(t *testing.T) {
					bubble(t, func(t *testing.T, b *servertest.Bubble) { holderAgainstRival(t, b, cut.do, cut.late, set, ttl) })
				})
			}
		}
	}
}

func TestLossIsSeenAtOnceWhenRedisHasAnotherOwner(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var got []holdfast.Event
		r := newReplica(t, b, holdfast.WithTrace(&holdfast.Trace{Ended: func(e holdfast.Event) { got = append(got, e) }}))
		lock := acquire(t, r.Locker, "k")
		_ = b.Redis.Set("k", "somebody else's")
		time.Sleep(5100 * time.Millisecond) // the next renewal
		if !isDone(lock.Context(background)) {
			t.Error("the context is live after a renewal found another owner")
		}
		wantIs(t, lock.Err(), holdfast.ErrLost)
		if lock.Deadline().After(time.Now()) {
			t.Error("a lost lock has a deadline to come")
		}
		wantIs(t, lock.Extend(background, time.Minute), holdfast.ErrLost)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		time.Sleep(time.Second)
		if v, _ := b.Redis.Get("k"); v != "somebody else's" {
			t.Errorf("the other owner's key is now %q", v)
		}
		if len(got) != 1 || got[0].Key != "k" || got[0].Token != lock.Token() || !errors.Is(got[0].Err, holdfast.ErrLost) {
			t.Errorf("Trace.Ended: got %+v", got)
		}
	})
}

// A reply that confirms the renewal comes after the deadline: the lock stays lost, also if nobody had noticed the deadline when
// it came (the process was stopped, or its timers are late).
func TestRenewalAfterTheDeadlineDoesNotRevive(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			lock := acquire(t, r.Locker, "k", holdfast.WithTTL(time.Second))
			r.link.CutDown()
			time.Sleep(850 * time.Millisecond)
			if stopped {
				holdfast.StopTimer(r.Locker)
			}
			time.Sleep(100 * time.Millisecond) // the server renewed all the while; nobody here can know
			if !stopped {
				wantIs(t, lock.Err(), holdfast.ErrLost)
			}
			r.link.Heal()
			time.Sleep(200 * time.Millisecond)
			wantIs(t, lock.Err(), holdfast.ErrLost)
			if !isDone(lock.Context(background)) {
				t.Error("the context came back to life")
			}
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			time.Sleep(100 * time.Millisecond)
			unheld(t, b, "k") // the handler is through and has released
		})
	}
}

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(10*time.Second))
		before := lock.Deadline()
		must(t, lock.Extend(background, time.Minute))
		left, ttl := time.Until(lock.Deadline()), b.Redis.TTL("k")
		if ttl != time.Minute || left != time.Minute-holdfast.Margin(time.Minute) {
			t.Errorf("after Extend by a minute: TTL %v, deadline in %v", ttl, left)
		}
		must(t, lock.Extend(background, time.Second))
		time.Sleep(20 * time.Second) // two ordinary renewals would have come by now
		if got := b.Redis.TTL("k"); got != 40*time.Second || !lock.Deadline().After(before) {
			t.Errorf("TTL %v, want 40s left of the extension; deadline %v after %v", got, lock.Deadline(), before)
		}
		time.Sleep(10 * time.Minute) // renewal takes over in time
		fine(t, lock.Err(), "after the extension")
		wantIs(t, lock.Extend(background, time.Millisecond), holdfast.ErrInvalid)
		wantIs(t, lock.Extend(background, 25*time.Hour), holdfast.ErrInvalid)
		ended, cancel := context.WithCancel(background)
		cancel()
		wantIs(t, lock.Extend(ended, time.Minute), holdfast.ErrUnavailable, context.Canceled)
		release(t, lock)
		err := lock.Extend(background, time.Minute)
		wantIs(t, err, holdfast.ErrLost)
		if !contains(err, "extend", `"k"`, "released") {
			t.Errorf("of a released lock: got %v", err)
		}
	})
}

// An answer that comes at last, after a long silence, is not waited for again for long.
func TestExtendTriesAgainSoonAfterALongSilence(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(10*time.Minute), holdfast.WithoutRenewal())
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
		fine(t, lock.Extend(background, 10*time.Minute))
		lasted(t, begin, 0, 35*time.Second)
		release(t, lock)
		time.Sleep(10 * time.Minute)
	})
}

// Without renewal nobody prolongs a lease but Extend, by what it was asked for.
func TestExtendWithoutRenewalIsLeftAtThat(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal())
		time.Sleep(13 * time.Second)
		r.link.ResetCommands()
		must(t, lock.Extend(background, 5*time.Second))
		time.Sleep(time.Second)
		if ttl, n := b.Redis.TTL("k"), r.link.Commands().Total(); ttl != 4*time.Second || n != 1 {
			t.Errorf("%d commands, and redis has it for another %v, want 4s", n, ttl)
		}
		release(t, lock)
	})
}

func holderAgainstRival(t *testing.T, b *servertest.Bubble, cut func(*servertest.Link), late time.Duration, set func(*redis.Options), ttl time.Duration) {
	rdb := b.Client(set)
	holder := newLocker(t, rdb, holdfast.WithTTL(ttl))
	rival := newReplica(t, b, holdfast.WithTTL(ttl))
	lock, err := holder.Acquire(background, "k")
	must(t, err)
	time.Sleep(ttl * 7 / 3) // renewed a few times
	if lock.Err() != nil {
		t.Fatalf("lost on a healthy link: %v", lock.Err())
	}
	cut(b.Link(rdb))
	begin := time.Now()
	var stolen *holdfast.Lock
	for stolen == nil {
		stolen, err = rival.TryAcquire(background, "k")
		if stolen == nil {
			var held *holdfast.HeldError
			if !errors.As(err, &held) {
				t.Fatal(err)
			}
			// Every half a millisecond, but not while the lease cannot end.
			time.Sleep(max(500*time.Microsecond, held.TimeLeft-3*time.Millisecond))
		}
		if time.Since(begin) > 10*ttl {
			t.Fatal("the rival never got the lock")
		}
	}
	if !isDone(lock.Context(background)) {
		t.Error("two holders: the rival has the lock and the holder's Done is open")
	}
	wantIs(t, lock.Err(), holdfast.ErrLost)
	if err := lock.Context(background).Err(); err != context.Canceled { //nolint:errorlint // the contract of Context.Err
		t.Errorf("the context's Err: got %v, want context.Canceled", err)
	}
	wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
	if lock.Deadline().After(time.Now()) {
		t.Error("a lost lock has a deadline to come")
	}
	rises(t, lock, stolen)
	b.Link(rdb).Refuse(nil)
	b.Link(rdb).Heal()
	time.Sleep(late)
	wantIs(t, lock.Err(), holdfast.ErrLost)
	wantIs(t, lock.Release(background), holdfast.ErrLost)
	time.Sleep(max(time.Second, ttl))
	fine(t, stolen.Err(), "the rival lost the lock to the old holder's late commands")
	release(t, stolen)
	shutdown(t, holder)
	shutdown(t, rival.Locker)
}
