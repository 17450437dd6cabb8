package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A lock comes to a call that ends in that moment, and so to the next, who can only look when its lease is over and
// another process had the lock: the token is that of the look, not the one that the tenure had before.
func TestQueueInheritsNoToken(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, core.WithTTL(2*time.Second), core.WithLocalHandover(64, time.Hour)), newReplica(t, b)
		warm(t, r)
		warm(t, other)
		zero := got(t, call(background, r, "k"))
		one := call(background, r, "k")
		release(t, zero)
		lock := got(t, one) // of a tenure that can be handed over
		time.Sleep(time.Second)

		ctx, cancel := context.WithCancel(background)
		var two <-chan result
		_, err := r.Acquire(ctx, "k", core.WithTrace(&core.Trace{Waiting: func(core.Event) {
			two = call(background, r, "k")
			b.Link(r.rdb).CutUp()
			cancel()
			release(t, lock)
		}}))
		wantIs(t, err, context.Canceled)
		var between *core.Lock
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
