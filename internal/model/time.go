package model

// tick lets a unit of time go by.
func (r *run) tick() {
	r.pass(1)
	for t := range r.Tenures {
		x := &r.Tenures[t]
		r.older(&x.LookWall)
		r.older(&x.Wall)
		if !r.Procs[proc(t)].Asleep {
			if x.Asked > noon-x.due() {
				x.Asked--
			}
			r.older(&x.Look)
			r.older(&x.Deadline)
		}
	}
	r.rewrite(func(m *Message) bool {
		r.older(&m.Wall)
		if !r.Procs[proc(int(m.Tenure))].Asleep {
			r.older(&m.At)
		}
		return true
	})
	r.expire()
	for p := range r.Procs {
		if !r.Procs[p].Asleep {
			r.lapses(p)
		}
	}
	r.checkTick()
}

// lapses ends the hold of a process that is over.
func (r *run) lapses(p int) {
	for t := p * perProc; t < (p+1)*perProc; t++ {
		if x := &r.Tenures[t]; x.Phase == Holding && noon >= x.Deadline {
			r.lapse(t)
		}
	}
}

func (r *run) older(t *Time) { r.move(t, 1) }

// move brings a moment nearer by d, if there is one.
func (r *run) move(t *Time, d Time) {
	floor := past
	if r.sc.Step > 0 {
		floor = ages
	}
	if *t != 0 && *t != Forever {
		*t = max(*t-d, noon-floor)
	}
}

// pass lets Redis' clock go on by d, or back.
func (r *run) pass(d Time) {
	s := &r.Server
	for _, t := range []*Time{&s.End, &s.FenceEnd, &s.LineEnd, &s.Held.Next, &s.Held.End} {
		r.move(t, d)
	}
	for i := range s.Held.Ends {
		r.move(&s.Held.Ends[i], d)
	}
	for i := range s.Line {
		r.move(&s.Line[i].Expiry, d)
	}
	for t := range r.Tenures {
		r.move(&r.Tenures[t].Seen, d)
	}
	r.rewrite(func(m *Message) bool {
		if m.Kind == Refused || m.Kind == Push {
			r.move(&m.A, d)
		}
		return true
	})
	r.age(Token(d) * r.p.PerTick)
}

// age makes all tokens smaller by d, in their order, and closes gaps between those that are behind the clock.
func (r *run) age(d Token) {
	if r.sc.plain {
		return
	}
	var all [7 + 8 + 5*MaxOwners + maxMessages]*Token
	n := 0
	add := func(t *Token) {
		if *t == 0 {
			return
		}
		i := n
		for ; i > 0 && *all[i-1] < *t; i-- {
			all[i] = all[i-1]
		}
		all[i] = t
		n++
	}
	f := &r.Server.Fence
	for _, t := range []*Token{&r.Held, &r.Alone, &r.Drawn, &r.Given, &f.Last, &f.Live, &f.Since} {
		add(t)
	}
	for i := range f.Lost {
		add(&f.Lost[i])
	}
	for i := range r.Server.Held.Tokens {
		add(&r.Server.Held.Tokens[i])
	}
	for i := range r.Tenures {
		x := &r.Tenures[i]
		add(&x.Token)
		add(&x.Held)
		add(&x.Last)
		add(&x.Freed)
	}
	for i := range r.Net[:r.Length] {
		add(&r.Net[i].Token)
	}
	// The largest first.
	now := Token(noon) * r.p.PerTick
	was, is := Token(0), Token(0)
	for i, t := range all[:n] {
		old, v := *t, *t-d
		switch {
		case v >= now:
			is = v
		case i == 0 || is >= now:
			is = now - min(now-v, r.p.Block)
		default:
			is -= min(was-old, r.p.Block)
		}
		was, *t = old, is
	}
}
