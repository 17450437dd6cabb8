package holdfast

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const forever = timing.Forever

// lease is what a holder knows of its lease in Redis.
type lease struct {
	end  timing.Instant // when the holder counts it as expired, by both clocks
	full time.Duration  // its length at its beginning
}

// leaseFrom returns the lease of length d that counts from at.
func leaseFrom(at timing.Instant, d time.Duration) lease {
	left := d - timing.Margin(d)
	return lease{end: timing.Instant{Mono: at.Mono + left, Wall: at.Wall + int64(left)}, full: d}
}

func (e *lease) over(now timing.Instant) bool {
	return now.Mono >= e.end.Mono || now.Wall >= e.end.Wall
}

// lasts reports whether another call may go on with the lease. Too little of it is left if it should have been renewed
// by now.
func (e *lease) lasts(now timing.Instant) bool {
	return !e.over(now) && e.end.Mono-now.Mono >= e.full/3
}

// running is the lease of a hold, as renewals move it. It is read without a mutex; the hold's guards changes.
//
// The deadline of the lease counts from when a command was sent, never from when its answer came. Redis starts the lease
// later than that, so the lease also ends later there, and no rival can hold the lock before the deadline.
type running struct {
	limit    time.Duration // the end that WithMaxHold sets, monotonic; forever without
	progress *progress     // of WithProgress; nil without
	deadline atomic.Int64  // of the lease, monotonic, since the clock's base; at most limit
	wall     atomic.Int64  // the same moment by the wall clock, as expected when it was set; Unix, ns
	full     atomic.Int64  // the length of the lease at its beginning
	complete atomic.Bool   // some lease was as long as the TTL, which the first lease of a grant may not be
	longest  atomic.Int64  // the longest lease that Extend asked for
}

func (r *running) set(e lease, ttl time.Duration) {
	r.deadline.Store(int64(min(e.end.Mono, r.limit)))
	r.wall.Store(e.end.Wall) // even if that is earlier: the clock was set back
	r.full.Store(int64(e.full))
	if e.full >= ttl {
		r.complete.Store(true)
	}
}

// get returns the lease that the next holder of the tenure can rely on.
func (r *running) get() lease {
	end := timing.Instant{Mono: r.leaseEnds(), Wall: r.wall.Load()}
	return lease{end, time.Duration(r.full.Load())}
}

// leaseEnds returns the deadline of the lease.
func (r *running) leaseEnds() time.Duration { return time.Duration(r.deadline.Load()) }

// ends returns the deadline of the hold: that of its lease, or of the next report of progress if that is earlier.
func (r *running) ends() time.Duration { return min(r.leaseEnds(), r.progress.ends()) }

// expired reports whether the deadline of the hold has passed, by the monotonic clock.
func (r *running) expired(now timing.Instant) bool { return now.Mono >= r.ends() }

// lapse returns why the deadline of the hold has passed, or nil if it has not.
func (r *running) lapse(now timing.Instant) error {
	lease, progress := r.leaseEnds(), r.progress.ends()
	switch {
	case now.Mono < min(lease, progress):
		return nil
	case progress < lease:
		return ErrNoProgress
	case lease >= r.limit:
		return errMaxHold
	}
	return errExpired
}

// left returns how long the lease lasts by both clocks.
func (r *running) left(now timing.Instant) time.Duration {
	return min(r.leaseEnds()-now.Mono, time.Duration(r.wall.Load()-now.Wall))
}

// cut ends the lease for its holder, if it has not ended.
func (r *running) cut(now timing.Instant) { r.deadline.Store(min(r.deadline.Load(), int64(now.Mono))) }

// bounded returns how long a lease to ask for when d is wanted: no longer than limit leaves.
func (r *running) bounded(now, d time.Duration) time.Duration {
	if r.limit == forever {
		return d
	}
	return max(time.Millisecond, min(d, timing.Covering(min(d, r.limit-now))))
}
