package model

import "slices"

// The steps of Redis, and what must be true before, during and after each.

// expire drops what is over in Redis.
func (r *run) expire() {
	r.Server.Expire()
	if r.Server.Owner == 0 {
		r.Given = 0
	}
}

// serve lets Redis execute a command and puts its answer under way.
func (r *run) serve(m Message) {
	r.expire()
	t, s, before := int(m.Tenure), &r.Server, r.Server
	id := r.owner(t)
	x := &r.Tenures[t]
	heard, looked := m.Heard, m.Kind == CmdForget
	switch x.Phase {
	case Holding, Lapsed, Releasing, Undoing, Waiting, Asking:
		heard = heard || m.Kind == CmdAcquire // perhaps when it is forgotten
	}
	var g []Grant
	switch m.Kind {
	case CmdAcquire:
		var a Acquired
		a, g = s.Acquire(r.p, id, r.limit(t), m.Flag, m.Told)
		reply := Message{Kind: Granted, Tenure: m.Tenure, Heard: m.Heard, At: m.At, Wall: m.Wall, Token: a.Token}
		if a.Token == 0 {
			reply.Kind, reply.Flag = Refused, a.Place > 0
			if m.Heard {
				reply.A, reply.Token = a.Now, a.Last
				if r.sc.Leisurely {
					reply.Left = a.Left
				}
			}
		}
		if looked = !a.Gone && before.has(id) == 0; looked && a.Token == 0 && a.Left <= 0 {
			r.breaks(Header) // it would look at once, and again
		}
		if a.Token != 0 {
			r.confirm(t)
		}
		if heard && !a.Gone {
			r.put(reply)
		}
	case CmdRenew:
		left := s.Renew(r.p, id, m.A)
		if left != 0 {
			r.confirm(t)
		}
		if x.Phase == Holding {
			r.put(Message{Kind: Renewed, Tenure: m.Tenure, A: left, At: m.At, Wall: m.Wall})
		}
	case CmdForget:
		var how int
		how, g = s.Forget(r.p, id, m.Token, m.Flag)
		if before.has(id) != 0 && s.has(id) == 0 {
			if x.Freed = r.Given; before.Owner != id {
				x.Freed = before.Held.Tokens[id-1]
			}
		}
		if heard {
			r.put(Message{Kind: Forgot, Tenure: m.Tenure, Heard: true, A: Time(how)})
		}
	}
	if i := before.find(id); m.Kind == CmdAcquire && i >= 0 && s.find(id) > i {
		r.breaks(Unfair)
	}
	r.compare(&before, id, m.Kind == CmdForget)
	if looked && s.vacant() {
		r.breaks(Idle)
	}
	for _, g := range g {
		u := r.tenureOf(g.Owner)
		r.confirm(u)
		if !r.Procs[proc(u)].Dead {
			r.put(Message{Kind: Push, Tenure: uint8(u), Token: g.Token, A: g.Time})
		}
	}
}

// confirm is when Redis tells a tenure that it has the lock. What it believes already, or is yet to hear from before, may be
// more than that.
func (r *run) confirm(t int) {
	x := &r.Tenures[t]
	for _, m := range r.Net[:r.Length] {
		if int(m.Tenure) == t && (m.Kind == Granted || m.Kind == Renewed || m.Kind == Push) {
			return
		}
	}
	if left := r.Server.has(r.owner(t)) - r.Server.Now; left <= 0 || x.Phase != Holding || min(x.Deadline, x.Wall)-noon <= left {
		r.Void &^= 1 << t
	}
}

// compare looks at who got the lock, and who had it and was no party to it, in a command of id.
func (r *run) compare(before *Server, id Owner, forget bool) {
	s := &r.Server
	if s.Owner != before.Owner {
		r.Given = 0
		if s.Owner != 0 && s.Owner&Several == 0 {
			r.Given = s.Fence.Live
		}
	}
	for o := Owner(1); o <= MaxOwners; o++ {
		was, is := before.has(o), s.has(o)
		switch {
		case was != 0 && o != id && is < was:
			r.breaks(Interference)
		case was == 0 && is != 0:
			r.Idle = 0 // if there is room still, it is another's turn
			r.checkGrant(before, o, id, forget)
		}
		if is != 0 && s.Owner&Several != 0 && before.Held.Tokens[o-1] != s.Held.Tokens[o-1] && s.Held.Tokens[o-1] <= r.Drawn {
			r.breaks(TokenOrder)
		}
	}
	if before.Owner == Foreign && (s.Owner != Foreign || s.End != before.End) {
		r.breaks(Interference)
	}
	if s.Fence.Live != before.Fence.Live && s.Fence.Live != 0 && s.Fence.Live <= r.Drawn {
		r.breaks(TokenOrder)
	}
	r.Drawn = max(r.Drawn, s.Fence.Last)
}

// checkGrant looks at one who got the lock, in a command of id.
func (r *run) checkGrant(before *Server, to, id Owner, forget bool) {
	place := before.find(to)
	if to != id && (place < 0 || before.Line[place].Expiry <= before.Now) {
		r.breaks(Silent)
	}
	if place < 0 {
		place = int(before.Length)
	}
	for _, e := range before.Line[:place] {
		there := e.Expiry > before.Now && !(e.Told && before.Deaf&bit(e.Owner) != 0)
		if there && r.Server.has(e.Owner) == 0 && !(forget && e.Owner == id) {
			r.breaks(Unfair)
		}
	}
}

// holds tells whether the hold of a tenure counts as held, by its process' own clocks.
func (r *run) holds(t int) bool {
	x := &r.Tenures[t]
	return x.Phase == Holding && r.runs(proc(t)) && (noon < x.Wall || r.without(WallClockCounts))
}

// check looks at the world after a step.
func (r *run) check() {
	if r.Server.Owner != 0 && !r.Server.vacant() {
		r.Idle = 0
	}
	var in crowd
	if r.Server.Owner == Foreign {
		in.add(1)
	}
	for t := range r.Tenures {
		x := &r.Tenures[t]
		id := r.owner(t)
		switch {
		case r.holds(t):
			if r.void(t) {
				continue
			}
			in.add(r.limit(t))
			left := min(x.Deadline, x.Wall) - noon
			if r.Server.has(id)-r.Server.Now < left {
				r.breaks(Overrun)
			}
		case x.Phase == Forgotten && (r.Server.has(id) != 0 || r.Server.find(id) >= 0):
			if u := r.tenureOf(id); u == t || r.Tenures[u].Phase == Forgotten {
				r.breaks(Leak)
			}
		}
	}
	r.checkSession()
	if in.over() && (r.sc.Only == Kept || r.sc.Only == Overlap) {
		r.breach = Overlap // whatever else is wrong with it
	}
}

// crowd is some that are inside together.
type crowd struct {
	n, readers int
	least      uint8 // 0 is 256
}

func (c *crowd) add(limit uint8) {
	c.n++
	c.least = min(c.least-1, limit-1) + 1
	if limit == Unlimited {
		c.readers++
	}
}

// over tells whether they are more than one of them allows. A reader may be any number.
func (c *crowd) over() bool {
	return c.n > 0 && c.least != Unlimited && (c.n > int(c.least) || c.readers > 0)
}

// checkSession compares what is kept of a session in short with the leases in it.
func (r *run) checkSession() {
	s := &r.Server
	if !s.shared() {
		return
	}
	h, is := s.Held, *s
	is.recount()
	if is.Held.Cap != h.Cap || is.Held.Mult != h.Mult || is.Held.Next < h.Next {
		r.breaks(Header)
	}
	in := crowd{}
	for i, end := range h.Ends {
		if end > s.End {
			r.breaks(KeyEnds)
		}
		if end > s.Now {
			in.add(h.Limits[i])
		}
	}
	if in.over() {
		r.breaks(Crowd)
	}
	if h.End < s.End {
		r.breaks(Header)
	}
}

// checkTick looks at what may last for an instant, but not for a tick.
func (r *run) checkTick() {
	net := r.Net[:r.Length]
	for t := range r.Tenures {
		if !r.Tenures[t].Strayed || r.Server.has(r.owner(t)) == 0 || !r.runs(proc(t)) {
			continue
		}
		undone := slices.ContainsFunc(net, func(m Message) bool { return int(m.Tenure) == t && m.Kind == CmdForget })
		if p := r.Tenures[t].Phase; !undone && p != Undoing && p != Releasing {
			r.breaks(Stray)
		}
	}

	waits := false
	for t := range r.Tenures {
		waits = waits || r.Tenures[t].Phase == Waiting && r.runs(proc(t))
	}
	quiet := !slices.ContainsFunc(net, func(m Message) bool { return m.Heard || m.Kind < Granted || m.Kind == Push })
	if !waits || !quiet || r.Server.Owner != 0 && !r.Server.vacant() {
		r.Idle = 0
		return
	}
	if r.Idle++; r.Idle > lookAgain+r.sc.Naps { // a process that was suspended looks a little later
		r.breaks(Stuck)
	}
}
