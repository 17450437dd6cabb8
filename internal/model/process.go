package model

// The steps of a process, as in core's acquire.go, tenure.go, inbox.go and hold.go.

func (r *run) start(p int) {
	t := p*perProc + int(r.Procs[p].Born)
	r.Procs[p].Born++
	r.Tenures[t] = Tenure{}
	r.look(t)
}

// due is how long after a look the next one comes at the latest.
func (x *Tenure) due() Time { return max(lookAgain, x.Due) }

// look sends an acquire.
func (r *run) look(t int) {
	x, p := &r.Tenures[t], proc(t)
	x.Phase, x.Asked, x.Due = Asking, noon, 0
	waits := !r.sc.Programs[p].Try
	m := Message{Kind: CmdAcquire, Tenure: uint8(t), Heard: true, Flag: waits, At: noon, Wall: noon}
	if waits && !r.Procs[p].Deaf {
		m.Told, x.Known = true, true
	}
	r.put(m)
}

// unheard stops listening to the acquire under way.
func (r *run) unheard(t int) {
	r.Tenures[t].Pending++
	r.rewrite(func(m *Message) bool {
		if int(m.Tenure) == t && m.Heard && (m.Kind == CmdAcquire || m.Kind == Granted || m.Kind == Refused) {
			m.Heard, m.At, m.Wall = false, 0, 0
			if m.Kind == Refused {
				m.A, m.Left, m.Token = 0, 0, 0
			}
		}
		return true
	})
}

// undo ends a tenure that nobody will use.
func (r *run) undo(t int) {
	x := &r.Tenures[t]
	*x = Tenure{Token: x.Token, Phase: Undoing, InLine: x.InLine, Pending: x.Pending, Freed: x.Freed}
	r.settle(t)
}

// settle ends a tenure of which Redis cannot have anything.
func (r *run) settle(t int) {
	x := &r.Tenures[t]
	if x.Phase == Undoing && x.Forgets == 0 && x.Token == 0 && !x.InLine && x.Pending == 0 {
		r.end(t, Forgotten)
	}
}

// end is when a process has nothing more to do for a tenure. No answer to it is heard any more.
func (r *run) end(t int, phase Phase) {
	r.Tenures[t] = Tenure{Phase: phase, Strayed: r.Tenures[t].Strayed}
	r.Void &^= 1 << t
	r.rewrite(func(m *Message) bool {
		if int(m.Tenure) != t {
			return true
		}
		m.Heard, m.At, m.Wall = false, 0, 0
		return m.Kind < Granted || m.Kind == Push && phase != Perished
	})
}

// hold begins one, unless its lease is over.
func (r *run) hold(t int, token Token, at, wall, lease Time) {
	x := &r.Tenures[t]
	x.Token = token
	deadline, wallEnd := at+lease, wall+lease
	if noon >= deadline || noon >= wallEnd && !r.without(WallClockCounts) {
		if x.Phase == Asking {
			r.undo(t)
		} else {
			x.Asked, x.Due = min(x.Asked, noon-1), 0 // looks at once
		}
		return
	}
	*x = Tenure{
		Token: token, Held: token, Phase: Holding, Known: x.Known, Pending: x.Pending, Freed: x.Freed,
		Deadline: deadline, Wall: wallEnd,
	}
	r.begins(t, token)
}

// begins compares the token of a hold. Those that were let in together need not begin in the order of their tokens.
func (r *run) begins(t int, token Token) {
	alone := r.limit(t) == 1
	if !r.void(t) && (token <= r.Alone || alone && token <= r.Held) {
		r.breaks(TokenOrder)
	}
	r.Held = max(r.Held, token)
	if alone {
		r.Alone = max(r.Alone, token)
	}
}

// lapse ends a hold without a release.
func (r *run) lapse(t int) {
	x := &r.Tenures[t]
	*x = Tenure{Token: x.Token, Phase: Lapsed, Pending: x.Pending, Freed: x.Freed}
	r.rewrite(func(m *Message) bool { return int(m.Tenure) != t || m.Kind != Renewed })
}

func (r *run) release(t int) {
	x := &r.Tenures[t]
	known := !r.without(KnownUntilForgotten)
	first := x.Held - Token(x.Handed)
	*x = Tenure{Token: x.Token, Held: first, Phase: Releasing, Known: known, Pending: x.Pending, Freed: x.Freed}
	r.rewrite(func(m *Message) bool { return int(m.Tenure) != t || m.Kind != Renewed })
	if x.Pending == 0 {
		r.forget(t)
	}
}

// forget sends one, or once more.
func (r *run) forget(t int) {
	x := &r.Tenures[t]
	if x.Forgets > 0 {
		x.Resent = true
		r.rewrite(func(m *Message) bool {
			if int(m.Tenure) == t && m.Kind == CmdForget {
				m.Heard = false
			}
			return int(m.Tenure) != t || m.Kind != Forgot
		})
	}
	x.Forgets++
	x.Asked = noon
	r.put(Message{Kind: CmdForget, Tenure: uint8(t), Heard: true, Flag: x.Pending > 0, Token: x.Token})
}

// hear is what a process does with an answer or a grant.
func (r *run) hear(m Message) {
	t := int(m.Tenure)
	x, p := &r.Tenures[t], proc(t)
	at, wall := m.At, m.Wall
	switch m.Kind {
	case Granted:
		if !m.Heard {
			x.Pending--
			if x.Token == 0 || r.without(LateAnswerChangesNoToken) {
				x.Token = m.Token
			}
			return
		}
		if r.without(LeaseCountsFromSending) {
			at, wall = noon, noon
		}
		r.hold(t, m.Token, at, wall, r.p.Lease)
	case Refused:
		x.InLine = x.InLine || m.Flag
		if !m.Heard {
			x.Pending--
			r.settle(t)
			return
		}
		if r.sc.Programs[p].Try {
			r.undo(t)
			return
		}
		x.Phase, x.Look, x.LookWall, x.Seen, x.Last = Waiting, at, wall, m.A, m.Token
		if r.sc.Leisurely {
			x.Due = min(m.Left, r.p.Entry-1)
		}
	case Renewed:
		if r.without(RenewalFromSending) {
			at, wall = noon, noon
		}
		if m.A == 0 {
			r.lapse(t)
		} else if end := at + m.A; end > x.Deadline {
			x.Deadline, x.Wall = end, wall+m.A
		}
	case Forgot:
		if x.Phase == Releasing {
			r.answer(t, m.A)
		}
		r.end(t, Forgotten)
	case Push:
		r.told(t, m)
	}
}

// answer is what Release returns; in Releasing it had the lock as far as it knows.
func (r *run) answer(t int, how Time) {
	x := &r.Tenures[t]
	released := how == ForgetReleased || how == ForgetAlready && x.Resent
	if how == ForgetUnknown && x.Resent {
		return
	}
	// Where the lease ran out, and a late acquire had got the lock once more when the forget arrived, what was held is lost.
	// Of an owner that was alone only the fence knows that, as long as there is one; without it, both are true.
	forgiven := released && x.Freed != 0 && r.limit(t) == 1 && r.p.Fence != Forever
	if released != (x.Freed == x.Held) && !forgiven {
		r.breaks(WrongAnswer)
	}
}

// told is of a grant.
func (r *run) told(t int, m Message) {
	x := &r.Tenures[t]
	if !x.Known {
		x.Strayed = x.Phase != Undoing && x.Phase != Releasing // those have a forget under way
		if !r.without(StrayIsForgotten) {
			r.put(Message{Kind: CmdForget, Tenure: uint8(t), Flag: true})
		}
		return
	}
	if x.Phase != Waiting {
		return
	}
	span, passed := m.A-x.Seen, noon-x.Look
	again := !x.InLine || m.Token <= x.Last && !r.without(GrantIsNewerThanLook) ||
		span > passed && !r.without(LookIsComparedToClock)
	if again {
		x.Asked, x.Due = min(x.Asked, noon-1), 0
		return
	}
	span = min(span, passed)
	at, wall := x.Look+span, x.LookWall+span
	if r.without(GrantCountsFromLook) {
		at, wall = noon, noon
	}
	r.hold(t, m.Token, at, wall, r.p.First)
}
