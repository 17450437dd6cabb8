package model

import (
	"fmt"
	"strings"
)

// Explain tells a trace step by step: what happens, what is in Redis then, and who counts itself as holding.
func (sc *Scenario) Explain(trace []Action) string {
	plain := *sc
	plain.plain = true
	w := plain.Begin()
	e := teller{w: &w}
	var b strings.Builder
	tell := func(i int, what string) {
		fmt.Fprintf(&b, "%3d  %-60s %s%s\n", i, what, e.redis(), e.holders())
	}
	tell(0, "the beginning")
	for i, a := range trace {
		what := e.action(a)
		breach := plain.Apply(&w, a)
		d := Time(0)
		switch a.Kind {
		case Tick, Flush:
			e.real++
			d = 1
		case SetBack:
			d = -sc.Step
		case SetForward:
			d = sc.Step
		}
		e.clock += d
		plain.Params.Passed += Token(d) * plain.Params.PerTick
		tell(i+1, what)
		if breach != Kept {
			fmt.Fprintf(&b, "     => %s\n", breach)
		}
	}
	return b.String()
}

// teller makes the moments of a world that stands still those of one that goes on.
type teller struct {
	w     *World
	real  Time // how much time has gone by
	clock Time // by how much Redis' clock has gone on
}

func name(t int) string { return fmt.Sprintf("%c%d", 'A'+proc(t), t%perProc+1) }

func (e *teller) redis() string {
	var b strings.Builder
	s := &e.w.Server
	fmt.Fprintf(&b, "%d: ", s.Now+e.clock)
	switch {
	case s.Owner == 0:
		b.WriteString("free")
	case s.Owner == Foreign:
		fmt.Fprintf(&b, "foreign until %d", s.End+e.clock)
	case s.Owner&Several != 0:
		fmt.Fprintf(&b, "=%s until %d", name(int(s.Owner&^Several)-1), s.End+e.clock)
	default:
		fmt.Fprintf(&b, "%s until %d", name(int(s.Owner)-1), s.End+e.clock)
	}
	if h := &s.Held; h.Of != 0 {
		fmt.Fprintf(&b, "; of =%s: cap %d mult %d next %d", name(int(h.Of&^Several)-1), h.Cap, h.Mult, h.Next+e.clock)
		for i, end := range h.Ends {
			if end != 0 {
				fmt.Fprintf(&b, ", %s limit %d until %d with %d", name(i), h.Limits[i], end+e.clock, h.Tokens[i])
			}
		}
	}
	for i, p := range s.Line[:s.Length] {
		sep := ", "
		if i == 0 {
			sep = "; line "
		}
		fmt.Fprintf(&b, "%s%s until %d", sep, name(int(p.Owner)-1), p.Expiry+e.clock)
	}
	if f := s.Fence; f.Last != 0 {
		fmt.Fprintf(&b, "; fence %d %d %d", f.Last, f.Live, f.Since)
		for _, t := range f.Lost {
			if t != 0 {
				fmt.Fprintf(&b, " %d", t)
			}
		}
		if f.Waits {
			b.WriteString(" w")
		}
	}
	for o := Owner(1); o <= MaxOwners; o++ {
		if s.Gone&bit(o) != 0 {
			fmt.Fprintf(&b, "; tombstone %s", name(int(o)-1))
		}
	}
	return b.String()
}

func (e *teller) holders() string {
	var b strings.Builder
	for t := range e.w.Tenures {
		if x := &e.w.Tenures[t]; x.Phase == Holding {
			fmt.Fprintf(&b, " | %s holds %d for %d", name(t), x.Held, min(x.Deadline, x.Wall)-noon)
			if e.w.Void&(1<<t) != 0 {
				b.WriteString(", void")
			}
		}
	}
	return b.String()
}

func (e *teller) message(m *Message) string {
	who, token := name(int(m.Tenure)), m.Token
	sent, redis := m.At+e.real, m.A+e.clock
	late := ""
	if !m.Heard {
		late = "late "
	}
	switch m.Kind {
	case CmdAcquire:
		return fmt.Sprintf("%s's %sacquire", who, late)
	case CmdRenew:
		return fmt.Sprintf("%s's renewal of %d for %d", who, sent, m.A)
	case CmdForget:
		tomb := ""
		if m.Flag {
			tomb = ", tainted"
		}
		return fmt.Sprintf("%s's %sforget of %d%s", who, late, token, tomb)
	case Granted:
		return fmt.Sprintf("%s's %sanswer: granted %d", who, late, token)
	case Refused:
		if !m.Heard {
			return who + "'s late answer: refused"
		}
		return fmt.Sprintf("%s's answer: refused at %d, the last token is %d", who, redis, token)
	case Renewed:
		return fmt.Sprintf("%s's answer to the renewal of %d: %d left", who, sent, m.A)
	case Forgot:
		how := [...]string{ForgetLost: "lost", ForgetReleased: "released", ForgetAlready: "already", ForgetUnknown: "unknown"}
		return fmt.Sprintf("%s's answer to the forget: %s", who, how[m.A])
	}
	return fmt.Sprintf("a push: %s was granted %d at %d", who, token, redis)
}

var moves = [...]string{
	Start: "begins", Timeout: "hears nothing", Look: "looks", GiveUp: "gives up", Renew: "renews", Extend: "extends",
	HandOn: "hands over within the process", Release: "releases", Forget: "sends a forget",
	Abandon: "gives up forgetting", Die: "dies", GoDeaf: "loses the connection of its inbox", Sleep: "is suspended",
	Wake: "goes on", SetBack: "Redis' clock is set back", SetForward: "Redis' clock is set forward",
	TakeForeign: "a foreign client takes the lock", FreeForeign: "the foreign client deletes its lock",
	Del: "somebody deletes the lock", Flush: "Redis forgets everything, and a tick", Tick: "a tick",
}

func (e *teller) action(a Action) string {
	switch a.Kind {
	case Deliver:
		m := &e.w.Net[a.I]
		if m.Kind < Granted {
			return "Redis gets " + e.message(m)
		}
		return string(rune('A'+proc(int(m.Tenure)))) + " gets " + e.message(m)
	case Lose:
		return "lost: " + e.message(&e.w.Net[a.I])
	case SetBack, SetForward, TakeForeign, FreeForeign, Del, Flush, Tick:
		return moves[a.Kind]
	case Start, Die, GoDeaf, Sleep, Wake:
		return string(rune('A'+int(a.I))) + " " + moves[a.Kind]
	}
	return name(int(a.I)) + " " + moves[a.Kind]
}
