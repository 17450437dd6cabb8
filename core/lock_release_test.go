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

// A release may be given the lock's own context, or one that descends from it, and the release itself, which ends them, does not
// count as a caller who gave up. What else ends such a context counts. A second release returns what the first one did.
func TestReleaseMayBeGivenTheLocksOwnContext(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		holdfast.ByLanes(r.Locker)
		r.link.Delay(50 * time.Millisecond)
		type valueKey struct{}
		for name, child := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"itself": func(c context.Context) (context.Context, context.CancelFunc) { return c, func() {} },
			"a value": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithValue(c, valueKey{}, 1), func() {}
			},
			"a cancel": context.WithCancel,
			"a deadline": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(c, time.Second)
			},
		} {
			lock := acquire(t, r.Locker, "k")
			ctx, cancel := child(lock.Context(background))
			for i := range 50 { // at random, were the end of ctx waited for too
				if err := lock.Release(ctx); err != nil {
					t.Errorf("with %s, release %d: %v", name, i, err)
				}
			}
			cancel()
		}

		nested := acquire(t, r.Locker, "k")
		inner, err := r.TryAcquire(nested.Context(background), "k", holdfast.WithReentrancy())
		must(t, err)
		release(t, nested)
		ctx, cancel := context.WithCancel(inner.Context(background))
		fine(t, inner.Release(ctx), "the last handle with a child of its context")
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
			begin := time.Now()
			wantIs(t, lock.Release(ctx), holdfast.ErrUnavailable)
			lasted(t, begin, 2*time.Second)
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

		wantIs(t, r.Do(background, "k", func(context.Context) error { b.Redis.Del("k"); return nil }), holdfast.ErrLost)
	})
}

func TestReleaseGoesOnUntilAnExtendedLeaseIsOver(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k")
		must(t, lock.Extend(background, time.Hour))
		r.link.Refuse(errRefused)
		r.link.Reset()
		wantIs(t, lock.Release(background), holdfast.ErrUnavailable)
		time.Sleep(30 * time.Second)
		r.link.Refuse(nil)
		time.Sleep(time.Minute)
		unheld(t, b, "k")
	})
}

// Rule 1: a release that arrives late, after its tenure ended otherwise and the next one began, touches
// nothing.
func TestDelayedReleaseDoesNotFreeALaterHold(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, a *replica) {
		lock := acquire(t, a.Locker, "k")
		until := make(chan struct{})
		a.link.OnCommand(first("forget", servertest.HoldRequest(until)))
		release(t, lock) // the resent one
		next := acquire(t, newReplica(t, b).Locker, "k")
		again := acquire(t, a.Locker, "other") // same Locker, to be sure nothing is shared
		close(until)
		time.Sleep(time.Second)
		notLate(t, b, next)
		release(t, next)
		release(t, again)
	})
}

// The fence tells a resent release how its tenure ended, however many others came and went since.
func TestResentReleaseReportsWhatHappened(t *testing.T) {
	for name, c := range map[string]struct {
		v    servertest.Verdict
		then func(*servertest.Bubble)
		want error
	}{
		"released, reply lost, others since":    {servertest.LoseReply, func(*servertest.Bubble) {}, nil},
		"lost, request delayed, others since":   {servertest.LoseRequest, func(b *servertest.Bubble) { b.Redis.Del("k") }, holdfast.ErrLost},
		"nothing is known any more, none since": {servertest.LoseReply, func(b *servertest.Bubble) { b.Redis.FlushAll() }, holdfast.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, a *replica) {
				other := newReplica(t, b)
				lock := acquire(t, a.Locker, "k")
				a.link.OnCommand(first("forget", c.v))
				done := make(chan error)
				go func() { done <- lock.Release(background) }()
				time.Sleep(100 * time.Millisecond)
				c.then(b)
				for range 30 {
					if c.want != holdfast.ErrUnavailable {
						release(t, acquire(t, other.Locker, "k"))
					}
				}
				if err := <-done; !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
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
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		release(t, rival)
	})
}

// A waiter finds by its own look that the lock was granted to it; the message of that grant comes while the lock is
// being released, and the lock must not be undone as one that nobody asked for before the release arrives.
func TestLateGrantDoesNotMakeAReleaseALoss(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		command, message := make(chan struct{}), make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(message) })
		waits := call(background, r, "k")
		time.Sleep(time.Second)
		release(t, lock)
		lock = got(t, waits)
		r.link.OnCommand(first("forget", servertest.HoldRequest(command)))
		time.AfterFunc(100*time.Millisecond, func() { close(message) })
		time.AfterFunc(200*time.Millisecond, func() { close(command) })
		release(t, lock)
	})
}

// The answer to an acquire comes after its lease has ended and a later acquire has got the lock again: a release
// that is resent asks about the latter.
func TestLateAnswerDoesNotMakeAReleaseALoss(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		holdfast.ByLanes(r.Locker)
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
		lock := await(t, r.Locker, "k")
		time.Sleep(time.Until(begin.Add(2500 * time.Millisecond)))
		release(t, lock)
	}, holdfast.WithTTL(2*time.Second))
}

// A late acquire of the tenure, sent again by the network, gets the lock once more after somebody deleted the key. The
// release names the token that was lost.
func TestReleaseOfATokenThatWasLostSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		var again []string
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if again == nil && kind(args) == "acquire" {
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
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		release(t, acquire(t, other.Locker, "k"))
	})
}
