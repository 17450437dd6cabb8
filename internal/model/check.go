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
	heard := m.Heard
	switch x.Phase {
	case Holding, Lapsed, Releasing, Undoing, Waiting, Asking:
		heard = heard || m.Kind == CmdAcquire // perhaps when it is forgotten
	}
	var g Grant
	switch m.Kind {
	case CmdAcquire:
		var a Acquired
		a, g = s.Acquire(r.p, id, m.Flag, m.Told)
		reply := Message{Kind: Granted, Tenure: m.Tenure, Heard: m.Heard, At: m.At, Wall: m.Wall, Token: a.Token}
		if a.Token == 0 {
			reply.Kind, reply.Flag = Refused, a.Place > 0
			if m.Heard {
				reply.A, reply.Token = a.Now, a.Last
			}
		}
		if heard && !a.Gone {
			r.put(reply)
		}
	case CmdRenew:
		left := s.Renew(r.p, id, m.A)
		if x.Phase == Holding {
			r.put(Message{Kind: Renewed, Tenure: m.Tenure, A: left, At: m.At, Wall: m.Wall})
		}
	case CmdForget:
		var how int
		how, g = s.Forget(r.p, id, m.Token, m.Flag)
		if before.Owner == id && s.Owner != id {
			x.Freed, r.Given = r.Given, 0
		}
		if heard {
			r.put(Message{Kind: Forgot, Tenure: m.Tenure, Heard: true, A: Time(how)})
		}
	}
	if s.Owner != 0 && s.Owner != before.Owner {
		r.checkGrant(&before, id, m.Kind == CmdForget)
		r.Given = s.Fence.Live
	}
	if o := before.Owner; o != 0 && o != id && (s.Owner != o || s.End != before.End) {
		r.breaks(Interference)
	}
	if i := before.find(id); m.Kind == CmdAcquire && i >= 0 && s.find(id) > i {
		r.breaks(Unfair)
	}
	if g.Owner != 0 {
		u := r.tenureOf(g.Owner)
		if !r.Procs[proc(u)].Dead {
			r.put(Message{Kind: Push, Tenure: uint8(u), Token: g.Token, A: g.Time})
		}
	}
}

// checkGrant looks at who got the lock, in a command of id.
func (r *run) checkGrant(before *Server, id Owner, forget bool) {
	to := r.Server.Owner
	place := before.find(to)
	if to != id && (place < 0 || before.Line[place].Expiry <= before.Now) {
		r.breaks(Silent)
	}
	if place < 0 {
		place = int(before.Length)
	}
	for _, e := range before.Line[:place] {
		there := e.Expiry > before.Now && !(e.Told && before.Deaf&bit(e.Owner) != 0)
		if there && e.Owner != to && !(forget && e.Owner == id) {
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
	if r.Server.Owner != 0 {
		r.Idle = 0
	}
	holders := 0
	for t := range r.Tenures {
		x := &r.Tenures[t]
		id := r.owner(t)
		switch {
		case r.holds(t):
			holders++
			left := min(x.Deadline, x.Wall) - noon
			if !r.sc.AllowOverrun && (r.Server.Owner != id || r.Server.End-r.Server.Now < left) {
				r.breaks(Overrun)
			}
		case x.Phase == Forgotten && (r.Server.Owner == id || r.Server.find(id) >= 0):
			if u := r.tenureOf(id); u == t || r.Tenures[u].Phase == Forgotten {
				r.breaks(Leak)
			}
		}
	}
	if holders > 1 {
		r.breach = Overlap // whatever else is wrong with it
	}
}

// checkTick looks at what may last for an instant, but not for a tick.
func (r *run) checkTick() {
	net := r.Net[:r.Length]
	for t := range r.Tenures {
		if !r.Tenures[t].Strayed || r.Server.Owner != r.owner(t) || !r.runs(proc(t)) {
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
	if !waits || !quiet || r.Server.Owner != 0 {
		r.Idle = 0
		return
	}
	if r.Idle++; r.Idle > lookAgain+r.sc.Naps { // a process that was suspended looks a little later
		r.breaks(Stuck)
	}
}
