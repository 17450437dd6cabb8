package model

// Actions appends what can happen in w.
func (sc *Scenario) Actions(w *World, to []Action) []Action {
	add := func(m Move, i int) { to = append(to, Action{m, uint8(i)}) }
	room := maxMessages - int(w.Length)
	late, urgent := sc.Late, false
	grants := 1 // at most, and an answer takes the room of its command
	for _, e := range w.Server.Line[:w.Server.Length] {
		if e.Limit > 1 {
			grants++
		}
	}
	for i := range int(w.Length) {
		m := &w.Net[i]
		urgent = urgent || sc.Prompt && m.Heard
		if !m.Heard && m.Kind != Push && m.Kind != CmdRenew && m.Kind != Renewed {
			late--
		}
		if i > 0 && *m == w.Net[i-1] {
			continue
		}
		if sc.arrives(w, m) && (m.Kind != CmdAcquire && m.Kind != CmdForget || room >= grants) {
			add(Deliver, i)
		}
		if w.Losses < sc.Losses && (m.Heard || m.Kind == Push || m.Kind == CmdRenew) {
			add(Lose, i)
		}
	}
	for p := range sc.Programs {
		urgent = sc.processActions(w, p, room, late > 0, add) || urgent
	}
	if w.Backs < sc.Backs {
		add(SetBack, 0)
	}
	if w.Forwards < sc.Forwards && harmless(w) {
		add(SetForward, 0)
	}
	if w.Foreigns < sc.Foreigns && w.Server.Owner == 0 {
		add(TakeForeign, 0)
	}
	if w.Server.Owner == Foreign {
		add(FreeForeign, 0)
	}
	if w.Dels < sc.Dels && w.Server.Owner != 0 {
		add(Del, 0)
	}
	if !urgent {
		add(Tick, 0)
		if w.Flushes < sc.Flushes {
			add(Flush, 0)
		}
	}
	return to
}

// arrives tells whether a message can be looked at now.
func (sc *Scenario) arrives(w *World, m *Message) bool {
	if m.Kind < Granted {
		return true
	}
	if !w.runs(proc(int(m.Tenure))) {
		return false
	}
	phase := w.Tenures[m.Tenure].Phase
	switch {
	case m.Kind == Push:
		return phase != Asking // it is looked at afterwards
	case (m.Kind == Granted || m.Kind == Refused) && !m.Heard:
		return phase == Releasing || phase == Undoing // looked at where it matters for the forget
	}
	return true
}

// processActions reports whether something must be done before time goes on.
func (sc *Scenario) processActions(w *World, p, room int, late bool, add func(Move, int)) (urgent bool) {
	x := &w.Procs[p]
	switch {
	case x.Dead:
		return false
	case x.Asleep:
		add(Wake, p)
		return false
	}
	busy := false // with an acquisition or a hold
	for t := p * perProc; t < p*perProc+int(x.Born); t++ {
		switch w.Tenures[t].Phase {
		case Asking, Waiting, Holding, Lapsed, Releasing:
			busy = true
		}
		if room >= 2 {
			urgent = sc.tenureActions(w, t, late, add) || urgent
		}
	}
	if !busy && x.Born < sc.Programs[p].Tenures && room >= 2 && sc.first(w, p) {
		add(Start, p)
	}
	if x.Born == 0 {
		return urgent
	}
	if w.Deaths < sc.Deaths {
		add(Die, p)
	}
	if w.Deafs < sc.Deafs && !x.Deaf {
		add(GoDeaf, p)
	}
	if w.Naps < sc.Naps {
		add(Sleep, p)
	}
	return urgent
}

// tenureActions is the same for one tenure; late tells whether it may stop listening to what is under way.
func (sc *Scenario) tenureActions(w *World, t int, late bool, add func(Move, int)) (urgent bool) {
	x, prog := &w.Tenures[t], &sc.Programs[proc(t)]
	patient := x.Asked == noon // sent something just now
	switch x.Phase {
	case Asking:
		if late && !patient {
			add(Timeout, t)
		}
		if late && prog.GivesUp {
			add(GiveUp, t)
		}
	case Waiting:
		if prog.GivesUp {
			add(GiveUp, t)
		}
		if !patient && !(x.InLine && sc.Params.Without == WaiterLooks) {
			add(Look, t)
			return noon-x.Asked >= x.due()
		}
	case Holding:
		if x.Renews < prog.Renews {
			add(Renew, t)
		}
		if x.Extends < prog.Extends {
			add(Extend, t)
		}
		if prog.HandsOn && Token(x.Handed)+1 < sc.Params.Block && noon < x.Wall {
			add(HandOn, t)
		}
		if prog.Releases {
			add(Release, t)
		}
	case Lapsed:
		if prog.Releases {
			add(Release, t)
		}
	case Releasing, Undoing:
		switch {
		case x.Forgets == 0 || late && !patient && x.Forgets < prog.Forgets:
			add(Forget, t)
		case !patient && x.Forgets == prog.Forgets:
			add(Abandon, t)
		}
	}
	return false
}

// first tells whether those with the same program and a lower number have begun: which is which does not matter.
func (sc *Scenario) first(w *World, p int) bool {
	return p == 0 || sc.Programs[p-1] != sc.Programs[p] || w.Procs[p-1].Born > w.Procs[p].Born || w.Procs[p-1].Born == sc.Programs[p].Tenures
}

// harmless tells whether Redis' clock can be set forward without cutting a lease that somebody counts on.
func harmless(w *World) bool {
	for i := range w.Net[:w.Length] {
		if k := w.Net[i].Kind; k == Granted || k == Push || k == Renewed {
			return false
		}
	}
	for t := range w.Tenures {
		if w.Server.has(Owner(t+1)) != 0 && !w.Procs[proc(t)].Dead {
			return false
		}
	}
	return true
}
