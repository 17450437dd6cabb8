package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// A lease counts from before the first command, however long the answers take: from the reply on, a holder would still
// count as one when the masters have let go.
func TestRedLockDeadlineCountsFromBeforeTheRequest(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		const ttl, back = 3 * time.Second, 250 * time.Millisecond
		v := ms.voter(t, core.WithTTL(ttl), core.WithNodeTimeout(time.Second))
		releaseAll(t, acquire(t, v.Locker, "k"))
		time.Sleep(time.Second)
		for _, l := range v.links {
			l.DelayDown(back)
		}
		// first is when the masters let go of it, if nothing more comes.
		first := func() (d time.Duration) {
			d = time.Hour
			for _, m := range ms {
				d = min(d, m.Redis.TTL("k"))
			}
			return d
		}
		check := func(what string, lock *core.Lock) {
			t.Helper()
			left, want := time.Until(lock.Deadline()), first()
			if spare := want - left; spare < core.Margin(ttl)-time.Millisecond {
				t.Errorf("%s: over for the holder %v before the masters let go, want %v", what, spare, core.Margin(ttl))
			}
		}
		lock := acquire(t, v.Locker, "k", core.WithoutRenewal())
		check("acquired", lock)
		time.Sleep(ttl / 3)
		if err := lock.Extend(background, ttl); err != nil {
			t.Fatal(err)
		}
		check("extended", lock)
		time.Sleep(time.Until(lock.Deadline()))
		if lock.Err() == nil || ms.having("k") != 5 {
			t.Errorf("at the deadline: %v, and on %d masters", lock.Err(), ms.having("k"))
		}
		_ = lock.Release(background)
		time.Sleep(time.Second)

		// A renewal by the scheduler.
		lock = acquire(t, v.Locker, "k")
		time.Sleep(ttl/3 + 2*back)
		check("renewed", lock)
		releaseAll(t, lock)
	})
}

// What a holder gives away for clocks that drift, beside what it takes for itself to notice.
func TestMarginCoversDrift(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second, time.Hour} {
		drift := ttl/100 + 2*time.Millisecond
		if got, want := core.Margin(ttl), drift+max(25*time.Millisecond, ttl/20); got != want {
			t.Errorf("margin of %v: got %v, want %v", ttl, got, want)
		}
	}
}
