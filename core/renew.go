package holdfast

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// scheduler renews all locks of a Locker and ends those whose deadline passes. It is one timer and a heap. It has a
// goroutine only while something is due, and that goroutine does not wait for Redis. A renewal goes into the queue of its
// server, and the hold back into the heap for a retry. The answer, whenever it comes, moves the hold again. So a Redis
// that hangs delays neither other renewals nor the moment at which a lock is declared lost.
type scheduler struct {
	locker *Locker

	mu    sync.Mutex // guards what follows and the holds' dates; never held during I/O or in hooks
	holds timing.Agenda[*due]
	over  bool // abandon was called: no hold is accepted any more
}

// due is what the scheduler knows of a hold.
type due struct {
	timing.Date // when it looks at the hold again
	hold        *hold
	renewAt     time.Duration
	report      time.Duration // when LongHold is due next, counted from when the hold began
}

func newScheduler(l *Locker) *scheduler {
	s := &scheduler{locker: l}
	s.holds.Start(s.tick)
	return s
}

// add accepts h and reports whether it did, which it does not after abandon.
func (s *scheduler) add(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	h.due.hold, h.due.report = h, reportAfter*h.cfg.ttl
	s.plan(h, h.renewPoint())
	s.holds.Add(&h.due)
	s.arm()
	return true
}

// renewPoint returns when to renew next: when a third of the lease has passed. A lease that was extended beyond the TTL
// is renewed when two thirds of a TTL are left. With WithoutRenewal, a lease that began short (see grantLease in
// package single) is renewed once, immediately, to its full length.
func (h *hold) renewPoint() time.Duration {
	end, full := h.lease.leaseEnds(), time.Duration(h.lease.full.Load())
	switch {
	case end >= h.lease.limit:
		return forever
	case !h.cfg.noRenew:
		ttl := min(h.cfg.ttl, full)
		return end + timing.Margin(ttl) - 2*ttl/3
	case !h.lease.complete.Load():
		return 0
	}
	return forever
}

// plan sets when to look at h: at its next renewal, or at its deadline if that is earlier.
func (s *scheduler) plan(h *hold, renewAt time.Duration) {
	h.due.renewAt = renewAt
	h.due.When = min(renewAt, h.lease.ends())
}

func (s *scheduler) remove(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.due.Listed() {
		s.holds.Remove(&h.due)
	}
}

// replan makes h due again at when.
func (s *scheduler) replan(h *hold, when time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.due.Listed() {
		return
	}
	s.plan(h, when)
	s.holds.Moved(&h.due)
	s.arm()
}

// hasten is for a hold whose deadline has become earlier.
func (s *scheduler) hasten(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.due.Listed() {
		s.plan(h, h.due.renewAt)
		s.holds.Moved(&h.due)
		s.arm()
	}
}

func (s *scheduler) arm() { s.holds.Arm(s.locker.env.Now().Mono) }

func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.Stop()
}

// abandon ends every hold without touching Redis, and returns the keys of those that had not ended.
func (s *scheduler) abandon() (keys []string) {
	s.mu.Lock()
	s.over = true
	all := slices.Clone(s.holds.All())
	s.mu.Unlock()
	for _, d := range all {
		h := d.hold
		if h.end(s.locker.env.Now(), nil, h.loss(ErrClosed)) {
			keys = append(keys, h.key())
		}
	}
	return keys
}

// tick does what is due. Every hold that it looks at gets a later time, or the loop would not end. Locks that are due a
// little later are included, so that many share a pipeline.
func (s *scheduler) tick() {
	var renews, expired, long []*hold
	s.mu.Lock()
	s.holds.Due()
	if s.holds.Len() == 0 {
		s.mu.Unlock()
		return
	}
	// A hold leaves the heap before it leaves the gate, so the gate's count is not 0 here, and Shutdown waits for this
	// goroutine.
	s.locker.env.Gate.Join()
	defer s.locker.env.Gate.Leave()
	now := s.locker.env.Now()
	for looks := true; looks && s.holds.Len() > 0; {
		d := s.holds.First()
		h := d.hold
		patience := timing.Patience(h.cfg.ttl)
		due := d.renewAt <= now.Mono+patience/8
		wait := h.lease.progress.awaited(now.Mono, timing.Margin(h.cfg.ttl))
		switch again := now.Mono + patience; {
		case d.When <= now.Mono && h.lease.expired(now):
			expired = append(expired, h)
			d.renewAt, d.When = again, again // removed when it has ended; it stays if an answer saved it
		case due && d.renewAt < wait:
			s.plan(h, wait)
		case due && wait == 0: // less than the time to the retry, or the loop would not end
			renews = append(renews, h)
			if held := now.Mono - h.began; held >= d.report {
				d.report = 2 * held
				long = append(long, h)
			}
			s.plan(h, again)
		case d.When <= now.Mono: // its deadline has moved
			s.plan(h, d.renewAt)
		default:
			looks = false
		}
		s.holds.Moved(d)
	}
	s.arm()
	s.mu.Unlock()

	for _, h := range expired {
		h.expire()
	}
	s.renew(renews, now)
	for _, h := range long {
		h.cfg.traces.emit(longHold, Event{Key: h.key(), Token: h.token, Elapsed: now.Mono - h.began})
	}
}

// renew sends the renewals of holds.
func (s *scheduler) renew(holds []*hold, now timing.Instant) {
	for _, h := range holds {
		if h.ended.Load() == nil && h.abandoned() {
			// Nobody can release it any more, nor use its context. Whatever runs under it still has the
			// rest of the lease.
			h.lose(errAbandoned)
		}
		if h.ended.Load() != nil {
			continue // nothing may go out for a hold that was lost or released
		}
		h.stake.Renew(context.Background(), h.lease.bounded(now.Mono, h.cfg.ttl), func(c *redisconn.Call) {
			if len(h.cfg.traces) > 0 {
				s.locker.env.Go(func() { s.answered(h, c) }) // no hook may hold up those that wait for a lane
			} else {
				s.answered(h, c)
			}
		})
	}
}

// answered takes the answer to a renewal. One that was never sent has been replaced by another.
func (s *scheduler) answered(h *hold, c *redisconn.Call) {
	if _, unsent := c.Err.(redisconn.Unsent); unsent {
		return
	}
	if err := h.renewed(c.At, c.Val, c.Err); err == nil {
		// Not at once again if Redis answered with no more than we had.
		s.replan(h, max(h.renewPoint(), s.locker.env.Now().Mono+retryRenewal(h)))
		left := h.lease.leaseEnds() - s.locker.env.Now().Mono
		h.cfg.traces.emit(renewed, Event{Key: h.key(), Token: h.token, TimeLeft: left})
	} else if h.ended.Load() == nil {
		h.failed(err)
		s.replan(h, s.locker.env.Now().Mono+retryRenewal(h))
	}
}

func retryRenewal(h *hold) time.Duration { return max(10*time.Millisecond, h.cfg.ttl/50) }
