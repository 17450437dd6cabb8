package holdfast_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What the simulation cannot see, or sees rarely: see core/redlock/README.md.

// An uptime is a difference of whole seconds, and almost one more than it should be when a master starts late in one.
func TestRedLockQuarantineAllowsForTheFloorsOfAnUptime(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		const q = 10 * time.Second
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1990 * time.Millisecond)))
		each(ms, (*servertest.Bubble).Restart)
		started := time.Now()
		time.Sleep(q - 500*time.Millisecond)
		v := ms.voter(t, holdfast.WithTTL(time.Second), redlock.WithQuarantine(q)) // it has not seen them before
		_, err := v.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		time.Sleep(time.Until(started.Add(q + time.Second)))
		releaseAll(t, acquire(t, v.Locker, "k"))
	})
}

// A master on which a renewal brought the lock back grants no token that is not larger, also if nobody released it.
func TestRedLockBackfillRaisesTheFence(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t, holdfast.WithTTL(300*time.Millisecond), redlock.WithQuarantine(0)), ms.voter(t, redlock.WithQuarantine(0))
		holdfast.SkewWall(a.Locker, 1900*time.Millisecond) // it proposes a token that is ahead
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
		rises(t, lock, next)
		releaseAll(t, next)
		each(a.links, (*servertest.Link).Heal)
		_ = lock.Release(background)
	})
}

// A call that has to raise its token does not count the vote for the lower one: the next holder could get the raised token
// too, with the vote of a master that has never heard of it.
func TestRedLockVoteForALowerTokenDoesNotCount(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		ahead, v := ms.voter(t), ms.voter(t)
		holdfast.SkewWall(ahead.Locker, 1900*time.Millisecond)
		releaseAll(t, acquire(t, v.Locker, "warm"))
		ahead.links[0].OnCommand(every("vote", servertest.LoseRequest))
		releaseAll(t, acquire(t, ahead.Locker, "k")) // the last two have its token
		for _, l := range []*servertest.Link{v.links[0], v.links[2]} {
			l.OnCommand(after(1, "vote", servertest.LoseRequest))
		}
		_, err := v.TryAcquire(background, "k") // the first grants the lower token, the second the raised one
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, ahead.Locker)
		shutdown(t, v.Locker)
	})
}

// Somebody flushes all masters, which go on running: no quarantine helps. The next token is larger all the same, by the
// clocks of the masters, however long requests and answers take.
func TestRedLockTokensRiseWhenAllMastersForget(t *testing.T) {
	const late = 40 * time.Millisecond
	up, down := (*servertest.Link).DelayUp, (*servertest.Link).DelayDown
	none := func(*servertest.Link, time.Duration) {}
	for name, c := range map[string]struct {
		before, after func(*servertest.Link, time.Duration)
		skew          time.Duration // of the clocks of the masters, at most
	}{
		"late answers":                   {none, down, 0},
		"late answers before":            {down, none, 0},
		"late requests":                  {none, up, 0},
		"late requests before":           {up, none, 0},
		"late requests and late answers": {up, down, 0},
		"clocks that differ":             {none, down, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleOf(t, 5, func(t *testing.T, ms masters) {
				ms.skew(c.skew)
				a, b := ms.voter(t), ms.voter(t)
				for i := range ms {
					c.before(a.links[i], late)
					c.after(b.links[i], late)
				}
				for _, v := range []*voter{a, b} {
					for i := range 3 {
						releaseAll(t, acquire(t, v.Locker, fmt.Sprint("warm", i)))
						time.Sleep(time.Second)
					}
				}
				for i := range 15 {
					key := fmt.Sprint("k", i)
					first := acquire(t, a.Locker, key)
					time.Sleep(time.Millisecond)
					each(ms, func(m *servertest.Bubble) { m.Redis.FlushAll() })
					next := acquire(t, b.Locker, key)
					rises(t, first, next)
					_ = first.Release(background)
					releaseAll(t, next)
				}
				shutdown(t, a.Locker)
				shutdown(t, b.Locker)
			})
		})
	}
}

// A key that no master remembers takes one round trip like any other, and all masters have it then.
func TestRedLockFreshKeyTakesOneRoundTrip(t *testing.T) {
	for name, c := range map[string]struct {
		delay func() time.Duration // of a link
		skew  time.Duration
	}{
		"fast":               {func() time.Duration { return 0 }, 0},
		"slow":               {func() time.Duration { return 40 * time.Millisecond }, 0},
		"varying":            {func() time.Duration { return time.Millisecond + rand.N(8*time.Millisecond) }, 0},
		"clocks that differ": {func() time.Duration { return time.Millisecond }, 900 * time.Millisecond},
		"some are far away":  {func() time.Duration { return time.Duration(rand.IntN(2)) * 30 * time.Millisecond }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleOf(t, 5, func(t *testing.T, ms masters) {
				ms.skew(c.skew)
				v := ms.voter(t, redlock.WithNodeTimeout(time.Second))
				vary := func() { each(v.links, func(l *servertest.Link) { l.Delay(c.delay()) }) }
				vary()
				for i := range 5 {
					releaseAll(t, acquire(t, v.Locker, fmt.Sprint("warm", i)))
				}
				time.Sleep(time.Second)
				const n = 20
				each(ms, (*servertest.Bubble).ResetCommands)
				for i := range n {
					if name == "varying" {
						vary()
					}
					lock := acquire(t, v.Locker, fmt.Sprint("k", i))
					time.Sleep(100 * time.Millisecond)
					ms.have(t, lock.Key(), len(ms))
					release(t, lock)
					time.Sleep(100 * time.Millisecond)
				}
				asked := float64(ms.commands())/float64(len(ms))/n - 1 // less the release
				if asked > 1.05 {
					t.Errorf("%.2f commands to each master for an acquisition, want 1", asked)
				}
				shutdown(t, v.Locker)
			})
		})
	}
}

// skew spreads the clocks of the masters over d.
func (ms masters) skew(d time.Duration) {
	for i, m := range ms {
		if d > 0 {
			m.Skew(d * time.Duration(i) / 4)
		}
	}
}
