package core

import (
	"math/rand/v2"
	"time"
)

// allowed is how long the next look may take. WithWait bounds the waiting for others and patience that for
// Redis: the first look may take longer than a short wait, and so may the last, which is at the end of it,
// if Redis has been answering.
func (a *acquisition) allowed() time.Duration {
	d := a.tenure.allowance()
	if a.wait < 0 || a.held != nil {
		return d
	}
	return min(d, a.from+max(a.wait, d)-a.locker.clock.Now().Mono)
}

// more tells whether to look again.
func (a *acquisition) more() bool {
	now := a.locker.clock.Now().Mono
	if a.failing && now-a.outage >= a.cfg.ttl {
		return false
	}
	switch {
	case a.wait < 0:
		return true
	case a.held != nil:
		return !a.last && now-a.from < a.wait
	case a.wait > 0 && now-a.from < a.wait:
		return true
	}
	// Redis failed to serve, and the time to wait for others is over, or there was none.
	return a.attempts < triesOfOne && now-a.from < a.tenure.patience()
}

// next is how long to pause before the next look, and whether that will be the last, at the end of the wait.
//
// Where the inbox will tell of a grant, a look is for what it cannot tell: that the lease of a holder ended who
// died. The first in line looks when it does, the others a little later, each, and nobody more often than
// once a second in the long run.
//
// Else waiting is polling. The times are random, so that waiters that began together drift apart, and grow like
// those of "decorrelated jitter" (AWS Architecture Blog, "Exponential Backoff And Jitter"); a lease that ends
// sooner is looked at when it ends.
func (a *acquisition) next() (d time.Duration, last bool) {
	switch {
	case a.split: // the random delay of the RedLock description
		d = time.Millisecond + rand.N(min(a.pause, lookAgain))
		a.pause = min(2*a.pause, a.cfg.pollMax)
	case a.pushed && a.held != nil && !(a.foreign && a.place == 1):
		d = lookAgain - rand.N(lookAgain/5)
		if left := a.held.TimeLeft; left > 0 {
			d = min(d, max(a.pause, left+rand.N(a.cfg.pollMin)+time.Duration(a.place-1)*a.cfg.pollMin))
		}
		a.pause = min(2*a.pause, 2*lookAgain/3)
	default:
		a.pause = min(a.cfg.pollMax, a.cfg.pollMin+rand.N(2*a.pause+1))
		d = min(a.pause, lookAgain)
		if a.held != nil && a.held.TimeLeft > 0 {
			d = min(d, a.held.TimeLeft+rand.N(a.cfg.pollMin))
		}
	}
	if a.wait > 0 {
		if left := a.from + a.wait - a.locker.clock.Now().Mono; left > 0 && left <= d {
			return left, true
		}
	}
	return d, false
}
