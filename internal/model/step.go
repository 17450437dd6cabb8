package model

// Move is a kind of step.
type Move uint8

// The moves. The first two are of a message, the last ones of the world, the others of a process or a tenure.
const (
	Deliver Move = iota
	Lose
	Start
	Timeout
	Look
	GiveUp
	Renew
	Extend
	HandOn
	Release
	Forget
	Abandon
	Die
	GoDeaf
	Sleep
	Wake
	SetBack
	SetForward
	TakeForeign
	FreeForeign
	Del
	Flush
	Tick
)

// Action is one step; I is the index of what it is about.
type Action struct {
	Kind Move
	I    uint8
}

// Apply does a step and tells which promise it breaks.
func (sc *Scenario) Apply(w *World, a Action) Breach {
	r := &run{World: w, sc: sc, p: &sc.Params}
	i := int(a.I)
	switch a.Kind {
	case Deliver:
		if m := r.take(i); m.Kind < Granted {
			r.serve(m)
		} else {
			r.hear(m)
		}
	case Lose:
		r.Losses++
		r.take(i)
	case Start:
		r.start(i)
	case Timeout:
		r.unheard(i)
		r.Tenures[i].Phase = Waiting
	case Look:
		r.look(i)
	case GiveUp:
		if r.Tenures[i].Phase == Asking {
			r.unheard(i)
		}
		r.undo(i)
	case Renew:
		r.Tenures[i].Renews++
		r.renew(i, r.p.Lease)
	case Extend:
		r.Tenures[i].Extends++
		r.renew(i, sc.Extend)
	case HandOn:
		x := &r.Tenures[i]
		x.Handed++
		x.Held = x.Token + Token(x.Handed)
		r.begins(i, x.Held)
	case Release:
		if r.Tenures[i].Phase == Lapsed {
			r.undo(i)
		} else {
			r.release(i)
		}
	case Forget:
		r.forget(i)
	case Abandon:
		r.end(i, Left)
	default:
		r.disturb(a.Kind, i)
	}
	r.check()
	return r.breach
}

func (r *run) renew(t int, lease Time) {
	r.put(Message{Kind: CmdRenew, Tenure: uint8(t), At: noon, Wall: noon, A: lease})
}

// disturb does what is nobody's will.
func (r *run) disturb(kind Move, p int) {
	switch kind {
	case Die:
		r.Deaths++
		r.Procs[p] = Process{Born: r.Procs[p].Born, Dead: true}
		for t := p * perProc; t < p*perProc+int(r.Procs[p].Born); t++ {
			r.end(t, Perished)
		}
		if r.sc.Closed {
			r.deafen(p)
		}
	case GoDeaf:
		r.Deafs++
		r.deafen(p)
	case Sleep:
		r.Naps++
		r.Procs[p].Asleep = true
	case Wake:
		r.Procs[p].Asleep = false
		r.lapses(p)
	case SetBack:
		r.Backs++
		r.pass(-r.sc.Step)
	case SetForward:
		r.Forwards++
		r.pass(r.sc.Step)
		r.expire()
	case TakeForeign:
		r.Foreigns++
		r.Server.Owner, r.Server.End = Foreign, r.Server.Now+r.p.Lease
	case FreeForeign:
		r.Server.Owner, r.Server.End = 0, 0
	case Del:
		r.Dels++
		r.voids()
		r.Server.Owner, r.Server.End, r.Given = 0, 0, 0
	case Flush:
		r.Flushes++
		r.voids()
		r.Server, r.Given = Server{Now: r.Server.Now, Deaf: r.Server.Deaf}, 0
		r.tick()
	case Tick:
		r.tick()
	}
}

// voids marks those whom somebody takes the lock from: what they believe until they are told otherwise is not for Redis to
// answer for.
func (r *run) voids() {
	for t := range r.Tenures {
		if r.Server.has(r.owner(t)) != 0 {
			r.Void |= 1 << t
		}
	}
}

// deafen breaks the connection of an inbox.
func (r *run) deafen(p int) {
	r.Procs[p].Deaf = true
	for t := p * perProc; t < (p+1)*perProc; t++ {
		r.Server.Deaf |= bit(r.owner(t))
	}
	r.rewrite(func(m *Message) bool { return m.Kind != Push || proc(int(m.Tenure)) != p })
}
