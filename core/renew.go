package holdfast

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// batchSize is how many renewals share a pipeline: enough to make the round trip cheap, few enough that one
// answer does not wait long for the others.
const batchSize = 128

// scheduler renews all locks of a Locker and ends those whose deadline passes. It is one timer and a heap. It has a
// goroutine only while something is due, and that goroutine does not wait for Redis. A renewal is sent in a batch, on a
// goroutine of its own, and the hold goes back into the heap for a retry. The answer, whenever it comes, moves the hold
// again. So a Redis that hangs delays neither the next batch nor the moment at which a lock is declared lost.
type scheduler struct {
	locker *Locker

	mu    sync.Mutex // guards what follows and the holds' heap fields; never held during I/O or in hooks
	holds holdHeap
	timer *time.Timer
	armed time.Duration // when the timer fires; forever if it is not running
	over  bool          // abandon was called: no hold is accepted any more
}

func newScheduler(l *Locker) *scheduler { return &scheduler{locker: l, armed: forever} }

// add accepts h and reports whether it did, which it does not after abandon.
func (s *scheduler) add(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.plan(h, h.renewPoint())
	heap.Push(&s.holds, h)
	s.arm()
	return true
}

// renewPoint returns when to renew next: when a third of the lease has passed. A lease that was extended beyond the TTL
// is renewed when two thirds of a TTL are left. With WithoutRenewal, a lease that began short (see grantLease in
// package single) is renewed once, immediately, to its full length.
func (h *hold) renewPoint() time.Duration {
	end, leased := time.Duration(h.deadline.Load()), time.Duration(h.leased.Load())
	switch {
	case end >= h.limit:
		return forever
	case !h.cfg.noRenew:
		ttl := min(h.cfg.ttl, leased)
		return end + timing.Margin(ttl) - 2*ttl/3
	case !h.whole.Load():
		return 0
	}
	return forever
}

// plan sets when to look at h: at its next renewal, or at its deadline if that is earlier.
func (s *scheduler) plan(h *hold, renewAt time.Duration) {
	h.renewAt = renewAt
	h.next = min(renewAt, time.Duration(h.deadline.Load()))
}

func (s *scheduler) remove(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&s.holds, int(h.index))
	}
}

// replan makes h due again at when.
func (s *scheduler) replan(h *hold, when time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.index < 0 {
		return
	}
	h.asked = false
	s.plan(h, when)
	heap.Fix(&s.holds, int(h.index))
	s.arm()
}

// arm makes the timer fire when the first hold is due. A timer that is set too early stays: it finds nothing due and is
// set again. So locks that come and go quickly cost no timer operation.
func (s *scheduler) arm() {
	if len(s.holds) == 0 || s.holds[0].next >= s.armed {
		return
	}
	s.armed = s.holds[0].next
	d := max(0, s.armed-s.locker.env.Now().Mono)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
	} else {
		s.timer.Reset(d)
	}
}

func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// abandon ends every hold without touching Redis, and returns the keys of those that had not ended.
func (s *scheduler) abandon() (keys []string) {
	s.mu.Lock()
	s.over = true
	holds := append([]*hold(nil), s.holds...)
	s.mu.Unlock()
	for _, h := range holds {
		if h.end(s.locker.env.Now(), nil, &opError{act: "hold", key: h.key(), outcome: ErrClosed}) {
			keys = append(keys, h.key())
		}
	}
	return keys
}

// tick does what is due. Every hold that it looks at gets a later time, or the loop would not end. Locks that are due a
// little later are included, so that many share a pipeline.
func (s *scheduler) tick() {
	var due, alone, expired, long []*hold
	s.mu.Lock()
	s.armed = forever
	if len(s.holds) == 0 {
		s.mu.Unlock()
		return
	}
	// A hold leaves the heap before it leaves the gate, so the gate's count is not 0 here, and Shutdown waits for this
	// goroutine.
	s.locker.env.Gate.Join()
	defer s.locker.env.Gate.Leave()
	now := s.locker.env.Now()
	for len(s.holds) > 0 {
		h := s.holds[0]
		deadline := time.Duration(h.deadline.Load())
		switch {
		case h.next <= now.Mono && deadline <= now.Mono:
			expired = append(expired, h)
			h.renewAt = now.Mono + timing.Patience(h.cfg.ttl) // removed when it has ended; it stays if an answer saved it
			h.next = h.renewAt
			heap.Fix(&s.holds, 0)
			continue
		case h.renewAt <= now.Mono+timing.Patience(h.cfg.ttl)/8: // less than the time to the retry, or the loop would not end
			if h.asked && s.locker.store.Many() { // another server may be holding up its pipeline
				alone = append(alone, h)
			} else {
				due = append(due, h)
			}
			h.asked = true
			if held := now.Mono - h.began; held >= h.report {
				h.report = 2 * held
				long = append(long, h)
			}
			s.plan(h, now.Mono+timing.Patience(h.cfg.ttl))
			heap.Fix(&s.holds, 0)
			continue
		case h.next <= now.Mono: // its deadline has moved
			s.plan(h, h.renewAt)
			heap.Fix(&s.holds, 0)
			continue
		}
		break
	}
	s.arm()
	s.mu.Unlock()

	for _, h := range expired {
		h.expire()
	}
	for len(due) > 0 {
		n := min(len(due), batchSize)
		s.send(due[:n:n], now)
		due = due[n:]
	}
	for i := range alone {
		s.send(alone[i:i+1:i+1], now)
	}
	for _, h := range long {
		if !h.cfg.leads {
			h.cfg.traces.emit(longHold, Event{Key: h.key(), Token: h.token, Elapsed: now.Mono - h.began})
		}
	}
}

// send renews holds in one pipeline for each server, on a goroutine of its own.
func (s *scheduler) send(holds []*hold, now timing.Instant) {
	holds = slices.DeleteFunc(holds, func(h *hold) bool {
		if h.ended.Load() == nil && h.abandoned() {
			// Nobody can release it any more, nor use its context. Whatever runs under it still has the
			// rest of the lease.
			h.lose(errAbandoned)
		}
		return h.ended.Load() != nil
	})
	if len(holds) == 0 {
		return
	}
	s.locker.env.Go(func() {
		for _, h := range holds {
			if s.locker.store.Several() {
				_ = h.err() // after a suspension this asks Redis, before a renewal brings anything back
			}
		}
		batch := redisconn.Batch{} // only now: nothing may go out for a hold that was lost or released
		for i, h := range holds {
			all := holds[i : i+1]
			if h.stake.sharing != nil {
				all = slices.DeleteFunc(slices.Clone(holds), func(o *hold) bool { return o.stake != h.stake })
				if all[0] != h {
					continue // all[0] renews for it
				}
			}
			if c := h.stake.Renew(context.Background(), h.lease(now.Mono, h.cfg.ttl), batch); c != nil {
				c.Then = func(val any, err error) {
					for _, h := range all {
						s.answered(h, now, val, err)
					}
				}
			}
		}
		batch.Run()
	})
}

func (s *scheduler) answered(h *hold, sent timing.Instant, val any, err error) {
	if err := h.renewed(sent, val, err); err == nil {
		// Not at once again if Redis answered with no more than we had.
		s.replan(h, max(h.renewPoint(), s.locker.env.Now().Mono+retryRenewal(h)))
		left := time.Duration(h.deadline.Load()) - s.locker.env.Now().Mono
		h.cfg.traces.emit(renewed, Event{Key: h.key(), Token: h.token, TimeLeft: left})
	} else if h.ended.Load() == nil {
		h.failed(err)
		s.replan(h, s.locker.env.Now().Mono+retryRenewal(h))
	}
}

func retryRenewal(h *hold) time.Duration { return max(10*time.Millisecond, h.cfg.ttl/50) }

// holdHeap is a container/heap of holds by next.
type holdHeap []*hold

func (q holdHeap) Len() int           { return len(q) }
func (q holdHeap) Less(i, j int) bool { return q[i].next < q[j].next }
func (q holdHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = int32(i), int32(j)
}

func (q *holdHeap) Push(x any) {
	h := x.(*hold)
	h.index = int32(len(*q))
	*q = append(*q, h)
}

func (q *holdHeap) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	h.index = -1
	return h
}
