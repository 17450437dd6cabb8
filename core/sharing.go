package holdfast

import "errors"

// sharing is one tenure that several calls of a process have together, with [WithShared]: each has a hold of its own, with the
// token of the tenure. The first takes it from Redis; those that come while that asks, and later ones for as long as a lock may be
// handed over within the process, join it without a command. Then a call begins a tenure of its own, behind a writer who waits:
// readers that come and go would keep it out for ever else.
//
// The tenure is renewed for all at once, and the last to leave releases it. A hold that was lost counts until its Release, as
// something that has not noticed may still run under it. Where that never comes, the lease runs out.
type sharing struct {
	queue *queue
	stake *stake
	lease lease // as it was at the beginning: none is shortened

	// Guarded by the mutex of the queues.
	holds   map[*hold]struct{} // not over
	alive   int                // these, and calls that are about to have one
	users   int                // these, and holds that are over and not released
	longest int64              // the longest lease that Extend asked for
	lost    bool               // Redis has the lock as somebody else's
}

// share makes the tenure of h, which the call at the front has become, one to join. Those that wait for it do.
func (q *queue) share(h *hold, e lease) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	s := &sharing{queue: q, stake: h.stake, lease: e, holds: map[*hold]struct{}{h: {}}}
	h.stake.sharing, q.latest = s, s
	s.admit()
	for _, w := range q.waiting {
		w.comes(s.admit())
	}
	q.waiting = nil
	q.busy--
}

// suits tells whether a may join.
func (s *sharing) suits(a *acquisition) bool {
	if s == nil || !s.stake.cfg.suits(a.cfg) {
		return false
	}
	now := a.locker.env.Now()
	return now.Mono < s.stake.began+s.queue.all.within && s.lease.lasts(now)
}

// admit counts a call in.
func (s *sharing) admit() turn {
	s.alive++
	s.users++
	s.queue.alive++
	return turn{stake: s.stake, held: true, lease: s.lease}
}

// enters notes the hold of a call that was counted in.
func (s *sharing) enters(h *hold) {
	s.queue.all.mu.Lock()
	s.holds[h] = struct{}{}
	lost := s.lost
	s.queue.all.mu.Unlock()
	if lost {
		h.lose(errOtherOwner)
	}
}

// leaves is for a hold that ended with err. Where Redis has the lock as somebody else's, those beside end with it.
func (s *sharing) leaves(h *hold, err error) {
	s.queue.all.mu.Lock()
	delete(s.holds, h)
	var beside []*hold
	if s.lost = s.lost || errors.Is(err, errOtherOwner); s.lost {
		for o := range s.holds {
			beside = append(beside, o)
		}
	}
	s.dies()
	if s.alive == 0 && err != errReleased {
		s.stake.End(0)
	}
	s.queue.all.mu.Unlock()
	for _, o := range beside {
		o.lose(errOtherOwner)
	}
}

// dies is for a call or hold that no longer counts as alive. It needs the mutex.
func (s *sharing) dies() {
	s.alive--
	s.queue.alive--
	if s.queue.latest == s && (s.alive == 0 || s.lost) {
		s.queue.latest = nil
	}
	s.queue.end()
}

// part counts out a call that is through with its hold, or had none. It reports whether that was the last: then it has to
// release the tenure.
func (s *sharing) part(h *hold) (last bool) {
	s.queue.all.mu.Lock()
	defer s.queue.all.mu.Unlock()
	if h == nil {
		s.dies()
	} else {
		s.longest = max(s.longest, h.longest.Load())
		h.longest.Store(s.longest)
	}
	if s.users--; s.users > 0 && s.alive == 0 {
		s.stake.End(0) // what is left of the lease stays
	}
	return s.users == 0
}
