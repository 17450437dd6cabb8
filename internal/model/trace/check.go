package trace

import (
	"fmt"
	"maps"
	"strings"
)

// slack is how far apart two moments may be that are the same, in ms: servers round them.
const slack = 1

// hiccup is how long a server may take from the moment by which it looks for what has ended to its next look at the clock,
// in ms: as long as its process may be kept waiting.
const hiccup = 100

// Checker holds the events of one server against the specification, in their order. Its zero value is for a server that
// is empty when its first event comes.
type Checker struct {
	locks   map[string]*State // as the last event of each left them; nil is unknown
	strange bool              // a lock that is not there is unknown too
	outside []*Event          // since the last event of a script
	n, till int64             // of the last event
	Events  int64             // that were checked

	// Needed has for each rule the first event that has no explanation without it, if it is not nil: then all rules are tried.
	Needed map[Rule]string
}

// Feed checks an event that a script wrote, or that is [Outside]. It returns an error that tells what cannot be explained.
func (c *Checker) Feed(text string) error {
	e, err := Read(text)
	if err != nil {
		return err
	}
	if e.Call == "outside" {
		c.outside = append(c.outside, e)
		return nil
	}
	switch {
	case e.N == 1:
		c.locks, c.strange = map[string]*State{}, false
	case e.N != c.n+1:
		return fmt.Errorf("event %d comes behind event %d: %v", e.N, c.n, e)
	}
	for _, o := range c.outside {
		if len(o.Keys) == 0 {
			c.locks, c.strange = map[string]*State{}, true
		}
		for _, lock := range o.Keys {
			c.locks[lock] = nil
		}
	}
	c.outside = nil
	for _, r := range Rules {
		if c.Needed != nil && c.Needed[r] == "" && c.explain(e, r) != nil {
			c.Needed[r] = e.String()
		}
	}
	err = c.explain(e, "")
	c.store(e)
	return err
}

// Last is the number of the last event of a script.
func (c *Checker) Last() int64 { return c.n }

// aged is what the last event of the lock left, at the time of e; sure says that this is known.
func (c *Checker) aged(e *Event, without Rule) (s *State, sure bool) {
	s, ok := c.locks[e.Lock]
	if s == nil {
		return &State{}, !ok && !c.strange
	}
	s = s.clone()
	if without == Expire {
		return s, true
	}
	from := max(e.At-hiccup, min(c.till, e.At))
	over := func(end, seen int64) bool {
		return end > 0 && (end < from || end <= e.At+slack && seen == 0)
	}
	if over(s.End, e.Before.End) {
		s.Value, s.End = "", 0
	}
	if !e.Alone {
		if over(s.FenceEnd, e.Before.FenceEnd) {
			s.Fence, s.FenceEnd = Fence{}, 0
		}
		if over(s.Line.End, e.Before.Line.End) {
			s.Line = Line{}
		}
		if over(s.Held.End, e.Before.Held.End) {
			s.Held = Held{}
		}
	}
	if _, ok := s.Gone[e.Owner]; !ok && e.At < s.vague {
		maps.Copy(s.Gone, e.Before.Gone)
	}
	for owner, end := range s.Gone {
		if over(end, e.Before.Gone[owner]) {
			delete(s.Gone, owner)
		}
	}
	return s, true
}

// seen is a state as e shows it; what e does not show is as in known.
func (e *Event) seen(known *State, s *State) *State {
	if e.Alone {
		c := known.clone()
		c.Value, c.End = s.Value, s.End
		return c
	}
	c := s.clone()
	c.vague = known.vague
	for owner, end := range known.Gone {
		if owner != e.Owner || e.Call == "renew" {
			c.Gone[owner] = end
		}
	}
	return c
}

func (c *Checker) explain(e *Event, without Rule) error {
	known, sure := c.aged(e, without)
	before := e.seen(known, &e.Before)
	if d := differ(known, before, slack); sure && d != "" {
		return fmt.Errorf("%v\nwhat the last call left has changed:\n%s\nit left\n%v\nand the call finds\n%v", e, d, known, before)
	}
	want, reply, told := Explain(before, e, without)
	took := e.Till - e.At + slack
	after := e.seen(want, &e.After)
	d := differ(want, after, took)
	if !e.answers(reply, took) || e.Failed != "" {
		d += fmt.Sprintf("\treply: %q, and not %q %s\n", e.Reply, reply, e.Failed)
	}
	if fmt.Sprint(told) != fmt.Sprint(e.Told) {
		d += fmt.Sprintf("\tmessages: %v, and not %v\n", e.Told, told)
	}
	if d == "" {
		return nil
	}
	return fmt.Errorf("%v\nthe rules do not lead to what happened:\n%s\nit finds\n%v\nthe rules lead to\n%v\tanswer %q, messages %v\nand what happened is\n%v\tanswer %q %s, messages %v",
		e, d, before, want, reply, told, after, e.Reply, e.Failed, e.Told)
}

func (c *Checker) store(e *Event) {
	c.n, c.till, c.Events = e.N, e.Till, c.Events+1
	known, sure := c.aged(e, "")
	if !sure && e.Alone {
		return // of the rest nothing is known
	}
	after := e.seen(e.seen(known, &e.Before), &e.After)
	if !sure {
		after.vague = e.Till + minute
	}
	c.locks[e.Lock] = after
}

// differ says what is not the same. Ends in the second state may be later by took.
func differ(want, got *State, took int64) string {
	var b strings.Builder
	w, g := want.facts(), got.facts()
	for len(w) < len(g) {
		w = append(w, fact{name: g[len(w)].name})
	}
	for len(g) < len(w) {
		g = append(g, fact{name: w[len(g)].name})
	}
	for i := range w {
		if w[i].text != g[i].text {
			fmt.Fprintf(&b, "\t%s: %s, and not %s\n", w[i].name, g[i].text, w[i].text)
		}
		if late := g[i].end - w[i].end; late < -slack || late > took {
			fmt.Fprintf(&b, "\t%s: until %d, and not %d\n", w[i].name, g[i].end, w[i].end)
		}
	}
	return b.String()
}

// answers compares the reply with what is wanted. What is left of a lease is less by the time that the call took.
func (e *Event) answers(want []string, took int64) bool {
	if len(want) != len(e.Reply) {
		return false
	}
	for i, got := range e.Reply {
		if want[i] == got {
			continue
		}
		n := &numbers{}
		less := n.of(want[i]) - n.of(got)
		if left := e.Call == "renew" || e.Call == "acquire" && i == 1; !left || n.err != nil || want[i] == "0" || less < -slack || less > took {
			return false
		}
	}
	return true
}

func (e *Event) String() string {
	what := fmt.Sprintf("event %d, at %d: %s of %s by %s", e.N, e.Now, e.Call, e.Lock, e.Owner)
	switch e.Call {
	case "acquire":
		what += fmt.Sprintf(", lease %d, limit %d%s, block %d", e.Lease, e.Limit, e.Tag, e.Block)
		if e.Waits {
			what += fmt.Sprintf(", to wait with share %q of weight %d, inbox %s", e.Share, e.Weight, e.Inbox)
		}
	case "renew":
		what += fmt.Sprintf(", lease %d", e.Lease)
	case "forget":
		what += fmt.Sprintf(", token %d, tombstone %d", e.Token, e.Tomb)
	}
	return what
}
