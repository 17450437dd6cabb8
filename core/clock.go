package core

import (
	"sync"
	"sync/atomic"
	"time"
)

// instant is one moment by both clocks of this machine. Leases are measured by the monotonic one; it stands
// still while a virtual machine is suspended, which the wall clock gives away.
type instant struct {
	mono time.Duration // since the clock's base
	wall int64         // Unix, in ns
}

// clock belongs to one Locker, so that a test's fake time has a base of its own.
type clock struct {
	base time.Time
	skew atomic.Int64 // added to the wall clock; tests suspend a machine with it
}

func (c *clock) now() instant {
	t := time.Now()
	return instant{t.Sub(c.base), t.UnixNano() + c.skew.Load()}
}

func (c *clock) time(mono time.Duration) time.Time { return c.base.Add(mono) }

// margin is how much earlier than Redis a holder counts a lease of d as over. The first part covers clocks
// that run at different rates and Redis' granularity of 1 ms (the drift term of the RedLock description,
// redis.io "Distributed Locks with Redis"), the second gives the cancelled handler time to notice before a
// rival can start.
func margin(d time.Duration) time.Duration {
	drift := d/100 + 2*time.Millisecond
	early := max(25*time.Millisecond, d/20)
	return drift + early
}

// covering is a lease that leaves a holder at least d after its margin.
func covering(d time.Duration) time.Duration {
	return (d+margin(0))*100/94 + time.Millisecond // margin(x) <= margin(0) + x*6/100
}

// patience is how long one command for a lease of d may go unanswered before it is sent again, and how long
// TryAcquire waits altogether: four tries fit into a lease. A dial and a round trip must fit into a try, so that
// a lease of 100 ms works next to its Redis only.
func patience(d time.Duration) time.Duration { return min(d/4, time.Second) }

// millis is what a server tells in ms. Anybody can give a key a life that is too long for a Duration, "EX 9999999999"
// for example; a hundred years are as good, and leave room for sums.
func millis(n int64) time.Duration {
	const most = 100 * 365 * 24 * int64(time.Hour/time.Millisecond)
	return time.Duration(max(-most, min(n, most))) * time.Millisecond
}

// timers are stopped ones to use again. Each Locker has its own, as a timer belongs to one synctest bubble.
type timers struct{ pool sync.Pool }

// get returns one that fires after d; give it back with rest.
func (ts *timers) get(d time.Duration) *time.Timer {
	if t, ok := ts.pool.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (ts *timers) rest(t *time.Timer) {
	t.Stop()
	ts.pool.Put(t)
}
