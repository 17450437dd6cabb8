package model

// Session is the hash of the holders that have the lock together, from the first to the last. It outlives
// the lock: what is in it then was lost.
type Session struct {
	Tokens    [MaxOwners]Token
	Ends      [MaxOwners]Time // 0 where an owner is not in it
	Limits    [MaxOwners]uint8
	Of        Owner // the value of the lock that this is about
	Cap, Mult uint8 // the least limit of those inside, and how many have that
	Next      Time  // no lease ends before
	End       Time  // of the hash
}

// shared tells whether several have the lock, and it is known who. Where the hash is about another value somebody has
// deleted the lock, or the hash: then the lock is nobody's of whom anything is known, as if it were foreign.
func (s *Server) shared() bool { return s.Owner&Several != 0 && s.Held.Of == s.Owner }

// entry tells whether an owner is in the session of now, dead or alive.
func (s *Server) entry(id Owner) bool { return s.shared() && s.Held.Ends[id-1] != 0 }

// inside is how many are in a session, with the holders that died since Next.
func (h *Session) inside() (n int) {
	for _, end := range h.Ends {
		if end != 0 {
			n++
		}
	}
	return n
}

// admits tells whether there is room for one more with that limit. The dead are looked for only where it matters.
func (s *Server) admits(p *Params, limit uint8) bool {
	if s.room(p, limit) {
		return true
	}
	if !s.shared() || s.Now < s.Held.Next || p.Without == DeadMakeRoom {
		return false
	}
	s.bury(p)
	return s.room(p, limit)
}

// full tells whether there is room for nobody, whatever the limit. Then nobody looks at who waits.
func (s *Server) full(p *Params) bool {
	const largest = Unlimited - 1
	return s.shared() && s.Held.Cap != Unlimited && !s.admits(p, largest)
}

func (s *Server) room(p *Params, limit uint8) bool {
	h := &s.Held
	if s.Owner == 0 {
		return true
	}
	if !s.shared() || limit == 1 || (h.Cap == Unlimited) != (limit == Unlimited) && p.Without != ReadersAreMany {
		return false
	}
	n, least := h.inside(), min(h.Cap, limit)
	switch p.Without {
	case LimitCountsItself:
		n--
	case LeastLimitCounts:
		least = limit
	}
	return n < int(least)
}

// enter gives the lock, which has room, to an owner, and returns its token. Where handed is true it comes from one who had
// it alone: nothing is left of a session before that.
func (s *Server) enter(p *Params, id Owner, limit uint8, lease Time, waits, handed bool) Token {
	if limit == 1 {
		if !handed && s.Fence.Waits && p.Without != MutexEndsSession {
			s.windUp(p)
		}
		s.Owner, s.End = id, s.Now+lease
		return s.draw(p, false, waits)
	}
	h, end := &s.Held, s.Now+lease
	if s.Owner == 0 {
		s.windUp(p)
		s.Owner, s.End = id|Several, end
		h.Of, h.Cap, h.Mult, h.Next = s.Owner, limit, 0, end
	}
	if p.Without != KeyOutlivesEntries {
		s.End = max(s.End, end)
	}
	if p.Without == NextIsALowerBound {
		h.Next = end
	}
	h.Next = min(h.Next, end)
	if limit < h.Cap && p.Without != CapIsLowered {
		h.Cap, h.Mult = limit, 0
	}
	if limit == h.Cap {
		h.Mult++
	}
	h.Ends[id-1], h.Limits[id-1] = end, limit
	// With the mark of waiters: the next owner that takes the lock alone has to look what is left of the session.
	h.Tokens[id-1] = s.draw(p, true, waits || p.Without != SessionIsMarked)
	s.keep(p)
	return h.Tokens[id-1]
}

// windUp ends a session whose lock is gone: those in it were lost.
func (s *Server) windUp(p *Params) {
	if p.Without != SessionLossesCount {
		s.Held.lose(p, &s.Fence, Forever)
	}
	if p.Without != SessionBeginsEmpty {
		s.Held = Session{}
	}
}

// lose records in a fence those in a session whose leases end by a time, the oldest token first.
func (h *Session) lose(p *Params, f *Fence, by Time) {
	for after := Token(0); ; {
		next := Token(0)
		for i, token := range h.Tokens {
			if token > after && h.Ends[i] <= by && (next == 0 || token < next) {
				next = token
			}
		}
		if next == 0 {
			return
		}
		f.lose(p, next)
		after = next
	}
}

// prolong lengthens the lease of one that is inside, and returns how long it is.
func (s *Server) prolong(p *Params, id Owner, lease Time, shortens bool) Time {
	end := &s.Held.Ends[id-1]
	if *end < s.Now+lease || shortens {
		*end = s.Now + lease
	}
	if p.Without != KeyOutlivesEntries {
		s.End = max(s.End, *end)
	}
	s.keep(p)
	return *end - s.Now
}

// keep lets the hash outlive the lock, and the fence too, which lives longer by as much as its last token is ahead of the
// clock: it must not say of a token that it was released because nothing is left that says it was lost.
func (s *Server) keep(p *Params) {
	switch {
	case p.Without == SessionOutlivesKey:
		s.Held.End = s.End
	case p.Fence == Forever:
		s.Held.End = Forever
	default:
		s.Held.End = s.End + 2*p.Fence
		if p.Without == SessionOutlivesFence {
			s.Held.End = s.End + p.Fence
		}
	}
}

// bury takes out those whose leases are over, and records them as lost. If nobody is left, the lock is free.
func (s *Server) bury(p *Params) {
	h := &s.Held
	f := s.Fence
	if p.Without != DeadAreLost {
		h.lose(p, &f, s.Now)
	}
	for i, end := range h.Ends {
		if end <= s.Now {
			h.Tokens[i], h.Ends[i], h.Limits[i] = 0, 0, 0
		}
	}
	s.write(p, f)
	s.recount()
}

// write stores a fence, which keeps the life that it has, if it has one.
func (s *Server) write(p *Params, f Fence) {
	known := s.Fence.Last != 0
	if s.Fence = f; !known && f.Last != 0 {
		s.FenceEnd = s.fenceEnd(p, 0, f.Last)
	}
}

// depart takes an owner out. It tells whether the hash knows it, and the token with which it was inside.
func (s *Server) depart(p *Params, id Owner) (had Token, was bool) {
	h := &s.Held
	if h.Ends[id-1] == 0 {
		return 0, false
	}
	if !s.shared() {
		return 0, true // lost, and stays in the hash as that
	}
	if h.Ends[id-1] <= s.Now {
		s.bury(p)
		return 0, true
	}
	had, limit := h.Tokens[id-1], h.Limits[id-1]
	if p.Without != ReleaseIsRemembered {
		f := s.Fence
		f.remember(had)
		s.write(p, f)
	}
	h.Tokens[id-1], h.Ends[id-1], h.Limits[id-1] = 0, 0, 0
	if h.inside() == 0 || p.Without == KeyIsLeftToOthers {
		s.Owner, s.End = 0, 0
		if h.inside() == 0 {
			*h = Session{}
		}
		return had, true
	}
	if limit == h.Cap {
		if h.Mult--; h.Mult == 0 && p.Without != CapIsRecounted {
			s.bury(p)
		}
	}
	return had, true
}

// recount writes what is to be known of a session in short. The lock lasts as long as a lease in it; one in which nobody is
// left is over.
func (s *Server) recount() {
	h := &s.Held
	h.Cap, h.Mult, h.Next, s.End = Unlimited, 0, Forever, 0
	for i, end := range h.Ends {
		if end == 0 {
			continue
		}
		h.Next, s.End = min(h.Next, end), max(s.End, end)
		if h.Limits[i] < h.Cap {
			h.Cap, h.Mult = h.Limits[i], 0
		}
		if h.Limits[i] == h.Cap {
			h.Mult++
		}
	}
	if h.Next == Forever {
		*h, s.Owner = Session{}, 0
	}
}

// has tells whether an owner has the lock, and until when, as it ought to be: by nothing that is kept beside the leases.
func (s *Server) has(id Owner) Time {
	switch {
	case s.Owner == id:
		return s.End
	case s.entry(id) && s.Held.Ends[id-1] > s.Now:
		return min(s.Held.Ends[id-1], s.End)
	}
	return 0
}

// vacant tells whether the first in line that is alive and can be told could have the lock, in the same way.
func (s *Server) vacant() bool {
	for _, e := range s.Line[:s.Length] {
		if e.Expiry <= s.Now || e.Told && s.Deaf&bit(e.Owner) != 0 {
			continue
		}
		if s.Owner == 0 {
			return true
		}
		n, least := 0, e.Limit
		for i, end := range s.Held.Ends {
			if end > s.Now {
				n++
				least = min(least, s.Held.Limits[i])
			}
		}
		return s.shared() && n < int(least) && (s.Held.Cap == Unlimited) == (e.Limit == Unlimited)
	}
	return false
}
