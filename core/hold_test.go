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
		"connection reset": {func(l *servertest.Link) { l.Refuse(errors.New("refused")); l.Reset() }, 3 * time.Second},
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
		r := newReplica(t, b, holdfast.WithTrace(&holdfast.Trace{Lost: func(e holdfast.Event) { got = append(got, e) }}))
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
			t.Errorf("Trace.Lost: got %+v", got)
		}
	})
}

// A reply that confirms the renewal comes after the deadline: the lock stays lost.
func TestRenewalAfterTheDeadlineDoesNotRevive(t *testing.T) {
	// Nobody had noticed the deadline when the reply came: the process was stopped, or its timers are late.
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(time.Second))
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		r.link.CutDown()
		time.Sleep(850 * time.Millisecond)
		holdfast.StopTimer(r.Locker)
		time.Sleep(100 * time.Millisecond)
		r.link.Heal()
		time.Sleep(100 * time.Millisecond)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
	})
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(time.Second))
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		r.link.CutDown()
		time.Sleep(950 * time.Millisecond) // the server renewed all the while; nobody here can know
		wantIs(t, lock.Err(), holdfast.ErrLost)
		r.link.Heal()
		time.Sleep(200 * time.Millisecond)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		if !isDone(lock.Context(background)) {
			t.Error("the context came back to life")
		}
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		time.Sleep(100 * time.Millisecond)
		if b.Redis.Exists("k") {
			t.Error("the handler is through and has released: the key should be gone")
		}
		shutdown(t, r.Locker)
	})
}

func holderAgainstRival(t *testing.T, b *servertest.Bubble, cut func(*servertest.Link), late time.Duration, set func(*redis.Options), ttl time.Duration) {
	rdb := b.Client(set)
	holder := newLocker(t, rdb, holdfast.WithTTL(ttl))
	rival := newReplica(t, b, holdfast.WithTTL(ttl))
	lock, err := holder.Acquire(background, "k")
	if err != nil {
		t.Fatal(err)
	}
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
	if lock.Token() >= stolen.Token() {
		t.Errorf("the rival's token %d is not above %d", stolen.Token(), lock.Token())
	}
	b.Link(rdb).Refuse(nil)
	b.Link(rdb).Heal()
	time.Sleep(late)
	wantIs(t, lock.Err(), holdfast.ErrLost)
	wantIs(t, lock.Release(background), holdfast.ErrLost)
	time.Sleep(max(time.Second, ttl))
	if err := stolen.Err(); err != nil {
		t.Errorf("the rival lost the lock to the old holder's late commands: %v", err)
	}
	release(t, stolen)
	shutdown(t, holder)
	shutdown(t, rival.Locker)
}
