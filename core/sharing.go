package holdfast

import "errors"

// sharing is one tenure that several calls of a process hold together, with [WithShared]. Each has a hold of its own,
// with the token of the tenure. The first call takes the tenure from Redis. Calls that come while it asks join the
// tenure without a command, and so do later calls, for as long as a lock may be handed over within the process. After
// that, a call begins a tenure of its own, behind a writer that waits: readers that come and go would otherwise keep
// the writer out forever.
//
// One renewal serves all of them, and the last to leave releases the tenure. A hold that was lost counts until its
// Release, because something that has not noticed may still run under it. If that Release never comes, the lease runs
// out.
type sharing struct {
	queue *queue
	stake *stake
	lease lease // as it was at the beginning: it never gets shorter

	// Guarded by the mutex of the queues.
	holds   map[*hold]struct{} // those that have not ended
	alive   int                // how many there are of these, and of calls that are about to have one
	users   int                // alive, and the holds that have ended and are not released
	longest int64              // the longest lease that Extend asked for
	lost    bool               // another owner holds the lock in Redis
}

// share lets other calls join the tenure of h, a new hold of the call at the front. Those that wait behind it join at
// once.
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

// suits reports whether a may join.
func (s *sharing) suits(a *acquisition) bool {
	if s == nil || !s.stake.cfg.suits(a.cfg) {
		return false
	}
	now := a.locker.env.Now()
	return now.Mono < s.stake.began+s.queue.all.within && s.lease.lasts(now)
}

// admit counts a call in and returns its turn.
func (s *sharing) admit() turn {
	s.alive++
	s.users++
	s.queue.alive++
	return turn{stake: s.stake, held: true, lease: s.lease}
}

// enters adds the hold of a call that admit has counted in.
func (s *sharing) enters(h *hold) {
	s.queue.all.mu.Lock()
	s.holds[h] = struct{}{}
	lost := s.lost
	s.queue.all.mu.Unlock()
	if lost {
		h.lose(errOtherOwner)
	}
}

// leaves removes a hold that ended with err. If another owner holds the lock in Redis, the other holds end as well.
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

// dies counts out a call or a hold that is no longer alive. The mutex must be held.
func (s *sharing) dies() {
	s.alive--
	s.queue.alive--
	if s.queue.latest == s && (s.alive == 0 || s.lost) {
		s.queue.latest = nil
	}
	s.queue.end()
}

// part counts out a call that is done with its hold h, or that never had one, with nil. It reports whether that was the
// last call, which then has to release the tenure.
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
