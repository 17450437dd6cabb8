package trace

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Never is the end of what has none.
const Never = -1

// State is what Redis keeps for one lock. What is not there has the end 0; ends are in ms by the server's clock.
type State struct {
	Value    string // of the lock: its owner; = and the one that began, if several may hold it; or what others put there
	End      int64
	Fence    Fence
	FenceEnd int64
	Line     Line
	Held     Held
	Gone     map[string]int64 // the ends of tombstones, by owner
	vague    int64            // until when there may be others, as an event shows only that of its owner
}

// Fence is what is known of the tenures of a lock, by their tokens. Without a Last there is none.
type Fence struct {
	Last  int64   // the largest token ever issued
	Live  int64   // that of a tenure that nobody has released, else 0
	Since int64   // every tenure from here on is accounted for
	Lost  []int64 // those that ended without a release

	Several bool // there is a list of those inside
	Waits   bool // somebody may wait
}

// Held has the owners that are inside together. It is of the lock only while that has the value Of, and outlives it.
type Held struct {
	Of    string
	Tag   string // the re-entry id of all, with a = in front; empty for owners with limits
	Next  int64  // no lease inside ends before, in ms
	Token int64  // of all, if they have a re-entry id
	In    map[string]Holder
	End   int64
}

// Holder is one of them.
type Holder struct{ Ends, Limit, Token int64 }

// Line is the waiting line.
type Line struct {
	Waiters []Waiter // by share, and in the order in which they came
	End     int64    // of what is known of each; their order and the shares have the same, if there are any
	Mute    int64    // until when the server counts as one that does not publish, in ms

	OrderEnd, SharesEnd int64

	Shares bool // there are some, and what follows
	V      float64
	Tags   map[string]Tag   // of the shares that wait
	Kept   map[string]int64 // of those that do not
}

// Tag is that of a share whose first waiter came at At when it got the tag, in µs.
type Tag struct{ N, At int64 }

// Terms are what an owner asks for when it enters.
type Terms struct {
	Limit int64
	Tag   string
	Life  int64 // of the fence, in ms
	Block int64 // how many tokens
}

// Waiter is one in line. It came At, in µs, and counts as dead from Expiry on, in ms.
type Waiter struct {
	Owner, Share      string
	At, Expiry, First int64
	Terms
	Weight  int64
	Counted bool // the server knows all readers of the inbox
	Inbox   string
}

func (w *Waiter) member() string { return fmt.Sprintf("%s %016d%s", w.Share, w.At, w.Owner) }

func (l *Line) find(owner string) int {
	return slices.IndexFunc(l.Waiters, func(w Waiter) bool { return w.Owner == owner })
}

// of returns the waiters of a share.
func (l *Line) of(share string) (all []Waiter) {
	for _, w := range l.Waiters {
		if w.Share == share {
			all = append(all, w)
		}
	}
	return all
}

// least is the least limit inside, and how many named it.
func (h *Held) least() (least, many int64) {
	for _, in := range h.In {
		switch {
		case many == 0 || in.Limit < least:
			least, many = in.Limit, 1
		case in.Limit == least:
			many++
		}
	}
	return least, many
}

func (h Held) clone() Held {
	h.In = maps.Clone(h.In)
	return h
}

func (s *State) clone() *State {
	c := *s
	c.Held = s.Held.clone()
	c.Line.Waiters = slices.Clone(s.Line.Waiters)
	c.Line.Tags, c.Line.Kept, c.Gone = map[string]Tag{}, map[string]int64{}, map[string]int64{}
	maps.Copy(c.Line.Tags, s.Line.Tags)
	maps.Copy(c.Line.Kept, s.Line.Kept)
	maps.Copy(c.Gone, s.Gone)
	return &c
}

// String is the fence as Redis has it.
func (f *Fence) String() string {
	if f.Last == 0 {
		return ""
	}
	text := fmt.Sprint(f.Last, " ", f.Live, " ", f.Since)
	for _, token := range f.Lost {
		text += " " + strconv.FormatInt(token, 10)
	}
	if f.Several {
		text += " s"
	}
	if f.Waits {
		text += " w"
	}
	return text
}

// fact is one thing that Redis keeps, to be compared and to be printed.
type fact struct {
	name, text string
	end        int64
}

func (s *State) facts() []fact {
	all := []fact{{"lock", s.Value, s.End}, {"fence", s.Fence.String(), s.FenceEnd}}
	var line, held strings.Builder
	for _, w := range s.Line.Waiters {
		fmt.Fprintf(&line, "\n\t\t%s, dead from %d, first lease %d, life of the fence %d, block %d, limit %d%s, weight %d, inbox %s %t",
			w.member(), w.Expiry, w.First, w.Life, w.Block, w.Limit, w.Tag, w.Weight, w.Inbox, w.Counted)
	}
	if s.Line.Mute != 0 {
		fmt.Fprint(&line, "\n\t\tdoes not publish until ", s.Line.Mute)
	}
	if s.Line.Shares {
		fmt.Fprintf(&line, "\n\t\tvirtual time %.17g, tags %v, kept %v", s.Line.V, s.Line.Tags, s.Line.Kept) // in the order of their names
	}
	if s.Held.Of != "" {
		fmt.Fprintf(&held, "of %s%s, no end before %d, token %d", s.Held.Of, s.Held.Tag, s.Held.Next, s.Held.Token)
		for _, owner := range slices.Sorted(maps.Keys(s.Held.In)) {
			in := s.Held.In[owner]
			fmt.Fprintf(&held, "\n\t\t%s until %d, limit %d, token %d", owner, in.Ends, in.Limit, in.Token)
		}
	}
	all = append(all, fact{"line", line.String(), s.Line.End}, fact{"order", "", s.Line.OrderEnd}, fact{"shares", "", s.Line.SharesEnd}, fact{"inside", held.String(), s.Held.End})
	for _, owner := range slices.Sorted(maps.Keys(s.Gone)) {
		all = append(all, fact{"tombstone", owner, s.Gone[owner]})
	}
	return all
}

func (s *State) String() string {
	var b strings.Builder
	for _, f := range s.facts() {
		if f.text != "" || f.end != 0 {
			fmt.Fprintf(&b, "\t%s: %s, until %d\n", f.name, f.text, f.end)
		}
	}
	if b.Len() == 0 {
		return "\tnothing\n"
	}
	return b.String()
}
