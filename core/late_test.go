package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Commands that arrive late: after their tenure ended and others began.

// Rule 1: a release that arrives late, after its tenure ended otherwise and the next one began, touches
// nothing.
func TestDelayedReleaseDoesNotFreeALaterHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, a)
		lock := acquire(t, a.Locker, "k")
		until := make(chan struct{})
		a.link.OnCommand(first("forget", servertest.HoldRequest(until)))
		release(t, lock) // the resent one
		next := acquire(t, c.Locker, "k")
		again := acquire(t, a.Locker, "other") // same Locker, to be sure nothing is shared
		close(until)
		time.Sleep(time.Second)
		if v, _ := b.Redis.Get("k"); v != core.Owner(next) {
			t.Errorf("the key has %q, want the later hold's", v)
		}
		if err := next.Err(); err != nil {
			t.Error(err)
		}
		release(t, next)
		release(t, again)
	})
}

// Rule 2: a renewal that arrives late does not cut a lease that was extended since.
func TestDelayedRenewalDoesNotShortenAnExtendedLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", core.WithTTL(15*time.Second))
		until := make(chan struct{})
		r.link.OnCommand(first("renew", servertest.HoldRequest(until)))
		time.Sleep(5500 * time.Millisecond) // the first renewal is on its way
		if err := lock.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		close(until)
		time.Sleep(500 * time.Millisecond)
		if got := b.Redis.TTL("k"); got < 59*time.Second {
			t.Errorf("TTL %v, want about 59.5s: the late renewal cut it", got)
		}
		release(t, lock)
	})
}

// A renewal that arrives after the release does not touch the next holder's lease either.
func TestDelayedRenewalDoesNotLengthenALaterHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, a)
		lock := acquire(t, a.Locker, "k", core.WithTTL(15*time.Second))
		until := make(chan struct{})
		a.link.OnCommand(first("renew", servertest.HoldRequest(until)))
		time.Sleep(5500 * time.Millisecond)
		release(t, lock)
		next := acquire(t, c.Locker, "k", core.WithTTL(time.Second), core.WithoutRenewal())
		close(until)
		time.Sleep(500 * time.Millisecond)
		if got := b.Redis.TTL("k"); got != 500*time.Millisecond {
			t.Errorf("TTL of the later hold: %v, want 500ms", got)
		}
		release(t, next)
	})
}

// The fence tells a resent release how its tenure ended, however many others came and went since.
func TestResentReleaseReportsWhatHappened(t *testing.T) {
	others := func(t *testing.T, c *replica, n int) {
		t.Helper()
		for range n {
			release(t, acquire(t, c.Locker, "k"))
		}
	}
	t.Run("released, reply lost, others since", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			a, c := newReplica(t, b), newReplica(t, b)
			warm(t, a)
			lock := acquire(t, a.Locker, "k")
			a.link.OnCommand(first("forget", servertest.LoseReply))
			done := make(chan error)
			go func() { done <- lock.Release(background) }()
			time.Sleep(100 * time.Millisecond)
			others(t, c, 30)
			if err := <-done; err != nil {
				t.Errorf("got %v, want nil: it was released", err)
			}
		})
	})
	t.Run("lost, request delayed, others since", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			a, c := newReplica(t, b), newReplica(t, b)
			warm(t, a)
			lock := acquire(t, a.Locker, "k")
			a.link.OnCommand(first("forget", servertest.LoseRequest))
			b.Redis.Del("k") // an operator, say
			done := make(chan error)
			go func() { done <- lock.Release(background) }()
			time.Sleep(100 * time.Millisecond)
			others(t, c, 30)
			if err := <-done; !errors.Is(err, core.ErrLost) {
				t.Errorf("got %v, want ErrLost", err)
			}
		})
	})
	t.Run("nothing is known any more", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			a := newReplica(t, b)
			warm(t, a)
			lock := acquire(t, a.Locker, "k")
			a.link.OnCommand(first("forget", servertest.LoseReply))
			done := make(chan error)
			go func() { done <- lock.Release(background) }()
			time.Sleep(100 * time.Millisecond)
			b.Redis.FlushAll()
			if err := <-done; !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
		})
	})
}

// The server fell back to a fence from before the tenure, and another one came since: nothing tells the two
// apart but that this release is the first.
func TestReleaseAfterAFailoverToAnOlderStateReportsLoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		release(t, acquire(t, a.Locker, "k"))
		old, _ := b.Redis.Get("{k}:~fence")
		time.Sleep(time.Second)
		lock := acquire(t, a.Locker, "k") // not replicated
		b.Restart()
		_ = b.Redis.Set("{k}:~fence", old)
		b.Redis.SetTTL("{k}:~fence", time.Minute)
		time.Sleep(time.Second)
		rival := acquire(t, c.Locker, "k")
		release(t, acquire(t, a.Locker, "other")) // a has noticed that its connection is dead
		err := lock.Release(background)
		wantIs(t, err, core.ErrLost)
		release(t, rival)
	})
}

// A waiter finds by its own look that the lock was granted to it; the message of that grant comes while the lock is
// being released, and the lock must not be undone as one that nobody asked for before the release arrives.
func TestLateGrantDoesNotMakeAReleaseALoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b)
		warm(t, holder)
		warm(t, r)
		command, message := make(chan struct{}), make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(message) })
		lock := acquire(t, holder.Locker, "k")
		locks := make(chan *core.Lock, 1)
		wait(t, r, "k", locks)
		time.Sleep(time.Second)
		release(t, lock)
		lock = <-locks
		r.link.OnCommand(first("forget", servertest.HoldRequest(command)))
		time.AfterFunc(100*time.Millisecond, func() { close(message) })
		time.AfterFunc(200*time.Millisecond, func() { close(command) })
		release(t, lock)
		for _, r := range []*replica{holder, r} {
			shutdown(t, r.Locker)
		}
	})
}

// The answer to an acquire comes after its lease has ended and a later acquire has got the lock again: a release
// that is resent asks about the latter.
func TestLateAnswerDoesNotMakeAReleaseALoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, core.WithTTL(2*time.Second))
		warm(t, r)
		begin, until := time.Now(), make(chan struct{})
		time.AfterFunc(2200*time.Millisecond, func() { close(until) })
		late, lost := first("acquire", servertest.HoldReply(until)), first("forget", servertest.LoseReply)
		r.link.OnCommand(func(args []string) servertest.Verdict {
			switch kind(args) {
			case "acquire":
				if v := late(args); v != servertest.Pass {
					return v
				}
				if time.Since(begin) < 2*time.Second {
					return servertest.LoseRequest
				}
			case "forget":
				return lost(args)
			}
			return servertest.Pass
		})
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(begin.Add(2500 * time.Millisecond)))
		release(t, lock)
		shutdown(t, r.Locker)
	})
}

// A grant that is heard of when its lease is over: the lock that the look then gets has the token that Redis gave it.
func TestGrantAfterItsLeaseLeavesNoToken(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, r)
		lock := acquire(t, other.Locker, "k")
		late := make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(late) })
		one := call(background, r, "k", core.WithTTL(200*time.Millisecond))
		release(t, lock)
		missed, err := other.Inspect(background, "k")
		if err != nil || missed.Token <= lock.Token() {
			t.Fatalf("%+v, %v", missed, err)
		}
		time.Sleep(300 * time.Millisecond)
		close(late)
		held := got(t, one)
		state, err := other.Inspect(background, "k")
		if err != nil || held.Token() != state.Token || held.Token() <= missed.Token {
			t.Errorf("token %d, want %d: %v", held.Token(), state.Token, err)
		}
		release(t, held)
		empty(t, b, r, other)
	})
}
