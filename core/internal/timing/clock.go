// Package timing has what holdfast knows of time: a clock that reads both clocks of a machine, timers for reuse, the
// arithmetic of leases, and a gate that counts what is under way.
package timing

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// An Instant is one moment by both clocks of this machine. Leases are measured by the monotonic clock. That clock
// stands still while a virtual machine is suspended, and the wall clock reveals it.
type Instant struct {
	Mono time.Duration // since the clock's base
	Wall int64         // Unix, in ns
}

// A Clock belongs to one Locker, so that a test's fake time has a base of its own. Call Start before anything else.
type Clock struct {
	base time.Time
	skew atomic.Int64 // added to the wall clock
}

// Start makes the clock begin now.
func (c *Clock) Start() { c.base = time.Now() }

// Skew moves the wall clock by d, as if the machine had been suspended; for tests.
func (c *Clock) Skew(d time.Duration) { c.skew.Add(int64(d)) }

func (c *Clock) Now() Instant {
	t := time.Now()
	return Instant{t.Sub(c.base), t.UnixNano() + c.skew.Load()}
}

// Time returns the moment with that Mono.
func (c *Clock) Time(mono time.Duration) time.Time { return c.base.Add(mono) }

// Forever is longer than anything lasts.
const Forever = time.Duration(math.MaxInt64)

// Margin is how long before Redis a holder counts a lease of length d as expired. Its first part covers clocks that run
// at different rates and the granularity of Redis, 1 ms: it is the drift term of the RedLock description, redis.io
// "Distributed Locks with Redis". Its second part gives the cancelled handler time to notice before a rival can start.
func Margin(d time.Duration) time.Duration {
	drift := d/100 + 2*time.Millisecond
	early := max(25*time.Millisecond, d/20)
	return drift + early
}

// Covering returns a lease that leaves a holder at least d after its margin.
func Covering(d time.Duration) time.Duration {
	return (d+Margin(0))*100/94 + time.Millisecond // Margin(x) <= Margin(0) + x*6/100
}

// Patience is how long one command for a lease of length d may go unanswered before it is sent again, and how long
// TryAcquire waits in all. Four tries fit into a lease. A dial and a round trip must fit into a try, so a lease of 100
// ms works only next to its Redis.
func Patience(d time.Duration) time.Duration { return min(d/4, time.Second) }

// Millis converts a number of ms that a server sent. Anybody can give a key a life that is too long for a Duration, for
// example with EX 9999999999. A hundred years are as good, and leave room for sums.
func Millis(n int64) time.Duration {
	const most = 100 * 365 * 24 * int64(time.Hour/time.Millisecond)
	return time.Duration(max(-most, min(n, most))) * time.Millisecond
}

// Timers keeps stopped timers for reuse. Each Locker has its own, because a timer belongs to one synctest bubble.
type Timers struct{ pool sync.Pool }

// Get returns a timer that fires after d. Give it back with Rest.
func (ts *Timers) Get(d time.Duration) *time.Timer {
	if t, ok := ts.pool.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// Rest stops t and keeps it.
func (ts *Timers) Rest(t *time.Timer) {
	t.Stop()
	ts.pool.Put(t)
}
