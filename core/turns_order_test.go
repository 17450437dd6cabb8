package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A lock that is handed over to a call that has just ended is freed, however long Redis takes and however old the
// tenure is.
func TestQueueTurnOfAnOldTenureThatNobodyTakes(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		zero := acquire(t, r.Locker, "k")
		one := call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		time.Sleep(time.Minute)
		ctx := quiet{background, new(atomic.Bool)}
		two := call(ctx, r, "k")
		ctx.ended.Store(true)
		r.link.OnCommand(first("forget", servertest.LoseRequestAndClose))
		release(t, lock)
		wantIs(t, (<-two).err, context.Canceled)
		time.Sleep(5 * time.Second)
		unheld(t, b, "k")
	}, holdfast.WithLocalHandover(64, time.Hour))
}

// A call that has come to the front, or that is next, says who had the lock before if it ends while Redis is asked.
func TestQueueTellsOfTheHolderBefore(t *testing.T) {
	for name, front := range map[string]bool{"at the front": true, "next": false} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				lock := acquire(t, r.Locker, "k", holdfast.WithLabel("a"))
				var one <-chan result
				if !front {
					one = call(background, r, "k")
				}
				ctx, cancel := context.WithCancel(background)
				two := call(ctx, r, "k")
				r.link.Delay(50 * time.Millisecond)
				go func() { _ = lock.Release(background) }()
				synctest.Wait()
				cancel()
				res := <-two
				var held *holdfast.HeldError
				if !errors.As(res.err, &held) || held.Label != "a" {
					t.Errorf("%v", res.err)
				}
				wantIs(t, res.err, context.Canceled)
				if one != nil {
					release(t, got(t, one))
				}
				time.Sleep(time.Second)
			})
		})
	}
}

// A lock comes to a call that ends in that moment, and so to the next, which can only look when its lease is over and
// another process had the lock: the token is that of the look, not the one that the tenure had before.
func TestQueueInheritsNoToken(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		zero := got(t, call(background, r, "k"))
		one := call(background, r, "k")
		release(t, zero)
		lock := got(t, one) // of a tenure that can be handed over
		time.Sleep(time.Second)

		ctx, cancel := context.WithCancel(background)
		var two <-chan result
		_, err := r.Acquire(ctx, "k", holdfast.WithTrace(&holdfast.Trace{Waiting: func(holdfast.Event) {
			two = call(background, r, "k")
			r.link.CutUp()
			cancel()
			release(t, lock)
		}}))
		wantIs(t, err, context.Canceled)
		var between *holdfast.Lock
		for between == nil {
			time.Sleep(10 * time.Millisecond)
			between, _ = other.TryAcquire(background, "k")
		}
		release(t, between)
		r.link.Heal()
		synctest.Wait()
		next := got(t, two)
		rises(t, between, next)
		notLate(t, b, next)
		release(t, next)
	}, holdfast.WithTTL(2*time.Second), holdfast.WithLocalHandover(64, time.Hour))
}

// The next holder of a lock that was extended, or whose Extend meets the end of its hold, gets a lease of its own length.
func TestQueueBehindAnExtendedLease(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for _, late := range []bool{false, true} {
			lock, two := inRow(t, r)
			if late { // Extend looks at the context between its look at the hold and the command
				ctx := &whenAsked{Context: background, n: 1, f: func() { release(t, lock) }}
				wantIs(t, lock.Extend(ctx, time.Hour), holdfast.ErrLost)
			} else {
				extend(t, lock, time.Hour)
				release(t, lock)
			}
			next := got(t, two)
			time.Sleep(time.Second)
			if ttl := b.Redis.TTL("k"); ttl > 15*time.Second {
				t.Errorf("late %v: the next lease ends in %v", late, ttl)
			}
			release(t, next)
		}
	})
}

// A message of the grant that comes when the lock is being released already does not make that a loss.
func TestGrantThatIsToldDuringTheRelease(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		openInbox(t, b, r)
		lock := acquire(t, other.Locker, "k")
		told, sent := make(chan struct{}), make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(told) })
		one := call(background, r, "k")
		release(t, lock)
		lock = got(t, one) // by its own look
		r.link.OnCommand(first("forget", servertest.HoldRequest(sent)))
		released := make(chan error)
		go func() { released <- lock.Release(background) }()
		synctest.Wait()
		close(told)
		synctest.Wait()
		close(sent)
		fine(t, <-released)
	})
}

// At the end of a wait behind calls of the same process Redis is asked once, and again where a connection fails.
func TestLookAtTheEndOfALocalWaitIsTriedAgain(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k")
		c := call(background, r, "k", holdfast.WithWait(10*time.Second))
		var looks atomic.Int32
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if kind(args) == "acquire" && looks.Add(1) == 1 {
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		wantIs(t, (<-c).err, holdfast.ErrNotAcquired)
		if n := looks.Load(); n != 2 {
			t.Errorf("%d looks, want one and another", n)
		}
		release(t, lock)
	})
}

// A call whose turn comes at the moment when its wait is over takes it, and what it waited with tells the next call nothing.
func TestQueueTurnAtTheEndOfTheWait(t *testing.T) {
	var looks int
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for i := range 100 {
			lock := acquire(t, r.Locker, "k")
			short := call(background, r, "k", holdfast.WithWait(10*time.Millisecond))
			go func() {
				time.Sleep(10 * time.Millisecond)
				_ = lock.Release(background)
			}()
			if res := <-short; res.err == nil {
				release(t, res.lock)
			} else {
				wantIs(t, res.err, holdfast.ErrNotAcquired)
			}
			synctest.Wait()
			lock, two := inRow(t, r)
			looks = 0
			release(t, lock)
			release(t, got(t, two))
			if looks > 0 {
				t.Fatalf("round %d: a call that was handed the lock asked Redis", i)
			}
		}
	}, holdfast.WithTrace(&holdfast.Trace{Acquired: func(e holdfast.Event) { looks += e.Attempts }}))
}

// quiet ends without a sound: only its Err tells.
type quiet struct {
	context.Context
	ended *atomic.Bool
}

func (c quiet) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}
