package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What the simulation cannot see, or sees rarely: see core/redlock.md.

// An uptime is a difference of whole seconds, and almost one more than it should be when a master starts late in one.
func TestRedLockQuarantineAllowsForTheFloorsOfAnUptime(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		const q = 10 * time.Second
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1990 * time.Millisecond)))
		for _, m := range ms {
			m.Restart()
		}
		started := time.Now()
		time.Sleep(q - 500*time.Millisecond)
		v := ms.voter(t, core.WithTTL(time.Second), core.WithQuarantine(q)) // it has not seen them before
		_, err := v.TryAcquire(background, "k")
		wantIs(t, err, core.ErrUnavailable)
		time.Sleep(time.Until(started.Add(q + time.Second)))
		releaseAll(t, acquire(t, v.Locker, "k"))
	})
}

// A master on which a renewal brought the lock back grants no token that is not larger, also if nobody released it.
func TestRedLockBackfillRaisesTheFence(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t, core.WithTTL(300*time.Millisecond), core.WithQuarantine(0)), ms.voter(t, core.WithQuarantine(0))
		core.SkewWall(a.Locker, 1900*time.Millisecond) // it proposes a token that is ahead
		a.links[3].CutUp()
		a.links[4].CutUp()
		lock := acquire(t, a.Locker, "k")
		for _, m := range ms[:3] {
			m.Restart() // and votes: the quarantine is off
		}
		a.links[3].Heal()
		a.links[4].Heal()
		time.Sleep(150 * time.Millisecond) // it renews
		if n := ms.having("k"); n < 3 || lock.Err() != nil {
			t.Fatalf("on %d masters after a renewal, want most: %v", n, lock.Err())
		}
		each(a.links, (*servertest.Link).CutUp)
		time.Sleep(500 * time.Millisecond)
		if lock.Err() == nil {
			t.Error("still held")
		}
		next := acquire(t, b.Locker, "k")
		if next.Token() <= lock.Token() {
			t.Errorf("token %d after %d", next.Token(), lock.Token())
		}
		releaseAll(t, next)
		each(a.links, (*servertest.Link).Heal)
		_ = lock.Release(background)
	})
}
