package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestSecondReleaseReturnsTheFirstResult(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		release(t, lock)
		ctx, cancel := context.WithCancel(background)
		cancel()
		n := 0
		for range 100 {
			if lock.Release(ctx) != nil {
				n++
			}
		}
		if n > 0 {
			t.Errorf("%d of 100 differ from the first", n)
		}
	})
}

// It ends with the release itself, which must not count as a caller who gave up.
func TestReleaseMayBeGivenTheLocksOwnContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Delay(15 * time.Millisecond)
		lock := acquire(t, r.Locker, "k")
		if err := lock.Release(lock.Context(background)); err != nil {
			t.Error(err)
		}
	})
}

type valueKey struct{}

// Nor does the end of a context that descends from it. What else ends such a context counts.
func TestReleaseMayBeGivenAChildOfTheLocksContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		r.link.Delay(150 * time.Millisecond)
		children := map[string]func(context.Context) (context.Context, context.CancelFunc){
			"a value": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithValue(c, valueKey{}, 1), func() {}
			},
			"a cancel": context.WithCancel,
			"a deadline": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(c, time.Second)
			},
		}
		for name, child := range children {
			lock := acquire(t, r.Locker, "k")
			ctx, cancel := child(lock.Context(background))
			if err := lock.Release(ctx); err != nil {
				t.Errorf("with %s: %v", name, err)
			}
			cancel()
		}

		nested := acquire(t, r.Locker, "k")
		inner, err := r.TryAcquire(nested.Context(background), "k", holdfast.WithReentrancy())
		if err != nil {
			t.Fatal(err)
		}
		release(t, nested)
		ctx, cancel := context.WithCancel(inner.Context(background))
		if err := inner.Release(ctx); err != nil {
			t.Errorf("the last handle with a child of its context: %v", err)
		}
		cancel()

		// It still ends with the deadline, and with the parent of the lock's context.
		for _, deadline := range []bool{true, false} {
			r.link.Delay(0)
			parent, stop := context.WithCancel(background)
			lock := acquire(t, r.Locker, fmt.Sprint("slow ", deadline))
			r.link.Delay(10 * time.Second)
			ctx, cancel := context.WithCancel(lock.Context(parent))
			if deadline {
				ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
			} else {
				time.AfterFunc(2*time.Second, stop)
			}
			began := time.Now()
			wantIs(t, lock.Release(ctx), holdfast.ErrUnavailable)
			if took := time.Since(began); took != 2*time.Second {
				t.Errorf("deadline %v: the release took %v, want 2s", deadline, took)
			}
			cancel()
			stop()
		}
		r.link.Delay(0)
		time.Sleep(time.Minute)
	})
}

func TestReleaseAfterLossReportsLoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		b.Redis.Del("k")
		rival := acquire(t, c.Locker, "k")
		wantIs(t, lock.Release(background), holdfast.ErrLost) // nobody had noticed before
		release(t, rival)

		err := r.Do(background, "k", func(context.Context) error {
			b.Redis.Del("k")
			return nil
		})
		wantIs(t, err, holdfast.ErrLost)
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
		wantIs(t, lock.Release(background), holdfast.ErrUnavailable)
		time.Sleep(30 * time.Second)
		r.link.Refuse(nil)
		time.Sleep(time.Minute)
		if b.Redis.Exists("k") {
			t.Errorf("key is still there for %v", b.Redis.TTL("k"))
		}
	})
}

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
		if v, _ := b.Redis.Get("k"); v != holdfast.Owner(next) {
			t.Errorf("the key has %q, want the later hold's", v)
		}
		if err := next.Err(); err != nil {
			t.Error(err)
		}
		release(t, next)
		release(t, again)
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
			if err := <-done; !errors.Is(err, holdfast.ErrLost) {
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
			if err := <-done; !errors.Is(err, holdfast.ErrUnavailable) {
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
		wantIs(t, err, holdfast.ErrLost)
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
		locks := make(chan *holdfast.Lock, 1)
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
		r := newReplica(t, b, holdfast.WithTTL(2*time.Second))
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

// A late acquire of the tenure, sent again by the network, gets the lock once more after somebody deleted the key. The
// release names the token that was lost.
func TestReleaseOfATokenThatWasLostSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		var again []string
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if again == nil && holdfast.ScriptName(args) == "acquire" {
				again = args
			}
			return servertest.Pass
		})
		lock := acquire(t, r.Locker, "k")
		r.link.OnCommand(nil)
		b.Redis.Del("k")
		release(t, acquire(t, other.Locker, "k"))
		cmd := make([]any, len(again))
		for i := range again {
			cmd[i] = again[i]
		}
		if token, err := other.rdb.Do(background, cmd...).Int64(); err != nil || token <= lock.Token() {
			t.Fatalf("the late acquire: %d, %v", token, err)
		}
		if err := lock.Err(); err != nil {
			t.Fatalf("it cannot know yet: %v", err)
		}
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		release(t, acquire(t, other.Locker, "k"))
	})
}
