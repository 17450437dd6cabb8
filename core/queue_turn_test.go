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
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithLocalHandover(64, time.Hour))
		warm(t, r)
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
		if b.Redis.Exists("k") {
			t.Errorf("the lock stays for another %v", b.Redis.TTL("k"))
		}
		empty(t, b, r)
	})
}

// A call that comes to the front and has to ask Redis says who had the lock before, if it ends before the answer.
func TestQueueTellsOfTheHolderBeforeAtTheFront(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithLabel("a"))
		ctx, cancel := context.WithCancel(background)
		next := call(ctx, r, "k")
		r.link.Delay(50 * time.Millisecond)
		go func() { _ = lock.Release(background) }()
		synctest.Wait()
		cancel()
		res := <-next
		var held *holdfast.HeldError
		if !errors.As(res.err, &held) || held.Label != "a" {
			t.Errorf("%v", res.err)
		}
		wantIs(t, res.err, context.Canceled)
		time.Sleep(time.Second)
		empty(t, b, r)
	})
}

// A call that was told of a holder says so when it ends, also while the next in line asks Redis.
func TestQueueTellsOfTheHolderBefore(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		openInbox(t, b, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithLabel("a"))
		ctx, cancel := context.WithCancel(background)
		one, two := call(background, r, "k"), call(ctx, r, "k")
		r.link.Delay(50 * time.Millisecond)
		go func() { _ = lock.Release(background) }()
		synctest.Wait()
		cancel()
		res := <-two
		var held *holdfast.HeldError
		if !errors.As(res.err, &held) {
			t.Errorf("%v", res.err)
		}
		wantIs(t, res.err, context.Canceled)
		release(t, got(t, one))
		empty(t, b, r)
	})
}

// A lock comes to a call that ends in that moment, and so to the next, which can only look when its lease is over and
// another process had the lock: the token is that of the look, not the one that the tenure had before.
func TestQueueInheritsNoToken(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, holdfast.WithTTL(2*time.Second), holdfast.WithLocalHandover(64, time.Hour)), newReplica(t, b)
		warm(t, r)
		warm(t, other)
		zero := got(t, call(background, r, "k"))
		one := call(background, r, "k")
		release(t, zero)
		lock := got(t, one) // of a tenure that can be handed over
		time.Sleep(time.Second)

		ctx, cancel := context.WithCancel(background)
		var two <-chan result
		_, err := r.Acquire(ctx, "k", holdfast.WithTrace(&holdfast.Trace{Waiting: func(holdfast.Event) {
			two = call(background, r, "k")
			b.Link(r.rdb).CutUp()
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
		b.Link(r.rdb).Heal()
		synctest.Wait()
		next := got(t, two)
		if next.Token() <= between.Token() {
			t.Errorf("token %d after %d", next.Token(), between.Token())
		}
		notLate(t, b, next)
		release(t, next)
		empty(t, b, r, other)
	})
}

// Each call waits for a Redis that does not serve for as long as its own lease, whatever the one in front of it asks.
func TestQueueOfDifferentLeasesInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		b.Link(r.rdb).CutUp()
		ctx, cancel := context.WithCancel(background)
		long := call(ctx, r, "k", holdfast.WithTTL(time.Hour))
		other := call(ctx, r, "k", holdfast.WithTTL(time.Hour))
		began := time.Now()
		short := call(background, r, "k", holdfast.WithTTL(4*time.Second))
		res := <-short
		wantIs(t, res.err, holdfast.ErrUnavailable)
		if d := res.at.Sub(began); d > 8*time.Second {
			t.Errorf("told after %v", d)
		}
		cancel()
		<-long
		<-other
		b.Link(r.rdb).Heal()
		empty(t, b, r)
	})
}

// The next holder of a lock that was extended gets a lease of its own length.
func TestQueueBehindAnExtendedLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		zero := acquire(t, r.Locker, "k")
		one, two := call(background, r, "k"), call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		if err := lock.Extend(background, time.Hour); err != nil {
			t.Fatal(err)
		}
		release(t, lock)
		next := got(t, two)
		if ttl := b.Redis.TTL("k"); ttl > 15*time.Second {
			t.Errorf("the next lease ends in %v", ttl)
		}
		release(t, next)
		empty(t, b, r)
	})
}

// A message of the grant that comes when the lock is being released already does not make that a loss.
func TestGrantThatIsToldDuringTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
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
		if err := <-released; err != nil {
			t.Error(err)
		}
		empty(t, b, r, other)
	})
}

// An Extend that meets the end of its hold must not lengthen the lease of the call that takes the lock over.
func TestExtendDuringAHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		zero := acquire(t, r.Locker, "k")
		one, two := call(background, r, "k"), call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		// Extend looks at the context between its look at the hold and the command.
		ctx := &whenAsked{Context: background, n: 1, f: func() { release(t, lock) }}
		wantIs(t, lock.Extend(ctx, time.Hour), holdfast.ErrLost)
		next := got(t, two)
		time.Sleep(time.Second)
		if ttl := b.Redis.TTL("k"); ttl > 15*time.Second {
			t.Errorf("the next lease ends in %v", ttl)
		}
		release(t, next)
		empty(t, b, r)
	})
}

// At the end of a wait behind calls of the same process Redis is asked once, and again where a connection fails.
func TestLookAtTheEndOfALocalWaitIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		c := call(background, r, "k", holdfast.WithWait(10*time.Second))
		time.Sleep(9 * time.Second)
		resets := 0
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if holdfast.ScriptName(args) == "acquire" && resets == 0 {
				resets++
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		time.Sleep(2 * time.Second)
		res := <-c
		if resets != 1 {
			t.Fatalf("%d connections were reset", resets)
		}
		wantIs(t, res.err, holdfast.ErrNotAcquired)
		release(t, lock)
		empty(t, b, r)
	})
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

// A call whose turn comes at the moment when its wait is over takes it, and what it waited with tells the next call nothing.
func TestQueueTurnAtTheEndOfTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var looks int
		r := newReplica(t, b, holdfast.WithTrace(&holdfast.Trace{Acquired: func(e holdfast.Event) { looks += e.Attempts }}))
		warm(t, r)
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
			lock = acquire(t, r.Locker, "k")
			one, two := call(background, r, "k"), call(background, r, "k")
			release(t, lock)
			lock = got(t, one)
			looks = 0
			release(t, lock)
			release(t, got(t, two))
			if looks > 0 {
				t.Fatalf("round %d: a call that was handed the lock asked Redis", i)
			}
		}
		empty(t, b, r)
	})
}
