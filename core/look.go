package holdfast

import (
	"math/rand/v2"
	"time"
)

// look is what an acquisition knows by its latest look at Redis, and what the calls behind it in the process report. One of
// held and err is set; neither before the first look.
type look struct {
	held    *HeldError
	err     error
	place   int  // in line
	foreign bool // the holder will notify nobody of its release
	deaf    bool // the server cannot notify this call of a grant, for now
	split   bool // several clients ask at once, so that none gets the lock
	pushed  bool // a grant will be signalled: the look asked for that
}

// outage is a run of failures of Redis.
type outage struct {
	on    bool
	since time.Duration
}

// lookAgain is the longest pause between two looks of a waiter in line. A look also shows that the waiter is alive.
// Without one for protocol.EntryLife the waiter counts as dead, so two looks in a row can fail.
const lookAgain = 2 * time.Second

// schedule says when an acquisition looks again.
type schedule struct {
	wait    time.Duration // as in config
	from    time.Duration // when wait began: with the call, the first answer that named a holder, or the look after the row
	known   bool          // somebody is known to hold the lock
	last    bool          // the look under way is the last one, because the wait has ended
	pause   time.Duration
	hurried int // looks in a row at the end of a lease that runs down, which did not wait for pause
}

// next returns how long to pause after l, and whether the wait then ends, so that one look is left.
//
// If the inbox will report a grant, a look is for what the inbox cannot report: that a lease has ended because its
// holder died. The first waiter in line looks when the lease ends, and each of the others a little later. In the long
// run no waiter looks more than once a second: if the leases of a holder are always that short, a waiter looks early at
// only three of their ends. Nobody renews a lease of which less than half is left, unless the holder's leases are
// shorter than this call's.
//
// Otherwise waiting is polling. The pauses are random, so that waiters that began together drift apart. They grow as in
// "decorrelated jitter" (AWS Architecture Blog, "Exponential Backoff And Jitter"). If a lease ends sooner, the look
// comes when it ends.
func (s *schedule) next(l *look, c *config, now time.Duration) (d time.Duration, last bool) {
	switch {
	case l.split: // the random delay of the RedLock description
		d = time.Millisecond + rand.N(min(s.pause, lookAgain))
		s.pause = min(2*s.pause, c.pollMax)
	case l.pushed && l.held != nil && !(l.foreign && l.place == 1):
		d = lookAgain - rand.N(lookAgain/5)
		if left := l.held.TimeLeft; left > 0 {
			end := left + rand.N(c.pollMin) + time.Duration(l.place-1)*c.pollMin
			if left >= min(s.pause, c.ttl/2) {
				s.hurried = 0
			} else {
				s.hurried++
			}
			if s.hurried == 0 || s.hurried > 3 { // three, because the first may come a millisecond early
				end = max(s.pause, end)
			}
			d = min(d, end)
		}
		s.pause = min(2*s.pause, 2*lookAgain/3)
	default:
		s.pause = min(c.pollMax, c.pollMin+rand.N(2*s.pause+1))
		d = min(s.pause, lookAgain)
		if l.held != nil && l.held.TimeLeft > 0 {
			d = min(d, l.held.TimeLeft+rand.N(c.pollMin))
		}
	}
	if s.wait > 0 {
		if left := s.from + s.wait - now; left > 0 && left <= d {
			return left, true
		}
	}
	return d, false
}
