package model

import "testing"

// Programs with a limit; one of 1 is as before.
func (g Program) to(limit uint8) Program {
	g.Limit = limit
	return g
}

var (
	come   = Program{Tenures: 1, Try: true, Releases: true, Forgets: 1} // without waiting
	quits  = Program{Tenures: 1, GivesUp: true, Releases: true, Forgets: 1}
	renews = Program{Tenures: 1, Renews: 1, Extends: 1}

	prolongs = Program{Tenures: 1, Renews: 1, Releases: true, Forgets: 2}

	short = with(func(p *Params) { p.Fence = 3 })
)

// limited are parts of what can happen where several may have the lock.
var limited = []*Scenario{
	// Three try for two places.
	{Name: "places", Params: usual, Prompt: true, Programs: []Program{come.to(2), come.to(2), come.to(2)}},
	// Two say three, one says two.
	{Name: "mixed", Params: usual, Prompt: true, Programs: []Program{come.to(2), come.to(3), come.to(3)}},
	// Three wait for two places; one dies, one message gets lost.
	{Name: "line for places", Params: usual, Held: true, Prompt: true, Losses: 1, Deaths: 1, Programs: []Program{once.to(2), once.to(2), once.to(2)}},
	// Waiters look when a lease ends, and another's lasts longer.
	{Name: "first end", Params: with(func(p *Params) { p.Entry = 6 }), Extend: 6, Held: true, Prompt: true, Leisurely: true, Deaths: 1, Programs: []Program{
		keeps.to(2), {Limit: 2, Tenures: 1, Extends: 1}, once.to(2),
	}},
	// A writer and two readers.
	{Name: "readers", Params: usual, Held: true, Prompt: true, Losses: 1, Programs: []Program{once, once.to(Unlimited), once.to(Unlimited)}},
	// Readers and places are not mixed.
	{Name: "reader among places", Params: usual, Held: true, Prompt: true, Deaths: 1, Programs: []Program{once.to(2), once.to(Unlimited), once.to(Unlimited)}},
	// A writer waits for a reader, and may give up; another reader comes.
	{Name: "writer", Params: usual, Held: true, Prompt: true, Losses: 1, Programs: []Program{once.to(Unlimited), quits, once.to(Unlimited)}},
	// One has a place, two are behind it with any limits.
	{Name: "mutex among places", Params: usual, Held: true, Prompt: true, Deaths: 1, Programs: []Program{once.to(2), once.to(2), once}},
	// Inboxes lose their connections.
	{Name: "deaf readers", Params: usual, Held: true, Prompt: true, Deaths: 1, Closed: true, Deafs: 1, Programs: []Program{once, once.to(2), once.to(2)}},
	// A foreign client has the lock now and then.
	{Name: "foreign", Params: usual, Prompt: true, Foreigns: 1, Programs: []Program{once.to(2), once.to(2)}},
	// Renewals, extensions and acquires in any order, and one alone.
	{Name: "late renewal of a place", Params: usual, Extend: 3, Late: 1, Programs: []Program{renews.to(2), try}},
	{Name: "late look of a place", Params: usual, Extend: 3, Late: 1, Programs: []Program{{Limit: 2, Tenures: 1, Extends: 1}, try}},
	// An acquire that is cancelled, and arrives whenever.
	{Name: "late acquire of a place", Params: usual, Late: 1, Programs: []Program{quits.to(2), come.to(2)}},
	// A release that arrives late, after a tenure, or two.
	{Name: "late release of a place", Params: usual, Held: true, Late: 1, Programs: []Program{twice.to(2), try}},
	{Name: "late release beside another", Params: usual, Held: true, Late: 1, Programs: []Program{resend.to(2), come.to(2)}},
	// Grants are as slow as they like.
	{Name: "late grants", Params: usual, Held: true, Programs: []Program{once.to(2), once.to(1), once.to(2)}},
	// Somebody deletes the lock.
	{Name: "deleted place", Params: usual, Held: true, Late: 1, Dels: 1, Programs: []Program{resend.to(2), come.to(2)}},
	{Name: "deleted, renewed", Params: usual, Held: true, Late: 1, Dels: 1, Foreigns: 1, Programs: []Program{{Limit: 2, Tenures: 1, Renews: 1}, try}},
	{Name: "deleted mutex", Params: usual, Held: true, Late: 1, Dels: 1, Programs: []Program{resend, come}},
	{Name: "deleted places", Params: usual, Held: true, Prompt: true, Late: 1, Losses: 1, Dels: 2, Programs: []Program{prolongs.to(2), prolongs.to(2), prolongs}},
	{Name: "deleted for a foreign client", Params: usual, Held: true, Prompt: true, Late: 1, Dels: 1, Foreigns: 2, Programs: []Program{prolongs.to(2), prolongs.to(2), once}},
	// The fence is soon forgotten, and so is the session, but not as soon.
	{Name: "short fence of places", Params: short, Held: true, Late: 1, Programs: []Program{resend.to(2), come.to(2)}},
	{Name: "short fence and renewals", Params: with(func(p *Params) { p.Fence = 1 }), Held: true, Late: 1, Programs: []Program{
		{Limit: 2, Tenures: 1, Renews: 2, Releases: true, Forgets: 2}, come.to(2),
	}},
	{Name: "short fence and mutex", Params: short, Held: true, Late: 1, Programs: []Program{resend.to(2), come}},
	// The fence remembers one loss.
	{Name: "short memory", Params: with(func(p *Params) { p.Memory = 1 }), Held: true, Late: 1, Programs: []Program{prolongs.to(3), resend.to(3), come.to(3)}},
	// A machine is suspended; Redis' clock is set.
	{Name: "nap in a place", Params: usual, Held: true, Naps: 1, Programs: []Program{once.to(2), once.to(2)}},
	{Name: "place and back", Params: usual, Held: true, Prompt: true, Backs: 1, Step: 2, Programs: []Program{once.to(2), keeps.to(2), keeps}},
	{Name: "place and forward", Params: with(func(p *Params) { p.Entry = 5 }), Held: true, Prompt: true, Deaths: 1, Forwards: 1, Step: 3, Programs: []Program{keeps.to(2), keeps.to(2), keeps.to(2)}},
	// A place with two tokens is handed over within its process.
	{Name: "block of a place", Params: with(func(p *Params) { p.Block = 2 }), Held: true, Late: 1, Programs: []Program{{Limit: 2, Tenures: 1, HandsOn: true, Releases: true, Forgets: 1}, once.to(2)}},
	// Redis forgets everything.
	{Name: "flushed", Params: usual, Held: true, Prompt: true, Flushes: 1, Programs: []Program{once.to(2), once.to(2), once}},
}

// What a script leaves for want of room, or because it lets in so many and no more, waiters find with their next
// look: it costs them that time, and nothing else.
func TestLooksFindRoom(t *testing.T) {
	n := limit / 4
	if raced {
		n /= 10
	}
	for _, row := range []struct {
		rule     Rule
		scenario string
	}{
		{ReleaseServesAll, "readers"}, {EntrantServes, "foreign"}, {LeaverServes, "writer"},
	} {
		for _, breach := range []Breach{Stuck, Overlap, Unfair} {
			sc := *find(t, row.scenario)
			sc.Params.Without, sc.Only = row.rule, breach
			if r := Search(&sc, n); r.Breach != Kept {
				t.Errorf("without %q: %s\n%s", row.rule, r.Breach, sc.Explain(r.Trace))
			}
		}
	}
}

// A hold may be longer than the life of the fence.
func TestResentReleaseAfterTheFenceIsForgotten(t *testing.T) {
	resent := func(p *Params) int {
		s := Server{Now: noon}
		a, _ := s.Acquire(p, 1, 2, false, false)
		for range 5 {
			s.Now++
			s.Renew(p, 1, p.Lease)
		}
		if s.Fence.Last != 0 {
			t.Fatal("the fence is not forgotten yet")
		}
		if how, _ := s.Forget(p, 1, a.Token, false); how != ForgetReleased {
			t.Fatalf("the release is answered %d", how)
		}
		how, _ := s.Forget(p, 1, a.Token, false)
		return how
	}
	p := short
	if how := resent(&p); how != ForgetAlready {
		t.Errorf("got %d, want that it was released before", how)
	}
	p.Without = ReleaseIsRemembered
	if how := resent(&p); how != ForgetUnknown {
		t.Errorf("without %q: got %d, want that nothing is known", p.Without, how)
	}
}

// Tenures that were let in together end in any order. Where there is no room for all losses, the fence no longer knows of
// tokens up to the largest that it dropped, and must not come to say that this one was released.
func TestFenceDropsLossesInAnyOrder(t *testing.T) {
	lost := func(p *Params) *Fence {
		f := &Fence{Last: 40, Since: 10}
		for _, token := range []Token{30, 20, 40} {
			f.lose(p, token)
		}
		return f
	}
	p := Params{Memory: 1}
	if f := lost(&p); f.Since != 31 || !f.lost(40) {
		t.Errorf("got %+v, want one that knows of 31 to 40, and that 40 was lost", f)
	}
	p.Without = SinceNeverFalls
	if f := lost(&p); f.Since > 30 {
		t.Errorf("without %q: %+v, which is as right", p.Without, f)
	}
}
