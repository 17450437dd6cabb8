package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// List is the Redis list to which the scripts append their events.
const List = "holdfast:~trace"

// Event is what one call of a script did. Moments are in ms by the server's clock, but for Now.
type Event struct {
	N     int64  // events are numbered, from 1 when the server has forgotten everything
	Call  string // acquire, renew or forget; or outside, see [Outside]
	Lock  string
	Owner string

	Now      int64 // TIME, in µs, as the call saw it
	At, Till int64 // the call went on for so long; what it set to end counts from a moment in between

	// What an acquire and a renewal ask for.
	Terms
	Lease        int64
	Waits        bool // and so what follows
	Entry, First int64
	Weight       int64
	Share        string
	Counted      bool
	Inbox        string
	Alone        bool // a renewal that knows only the lock

	// What a forget says. It ends a hold, a wait, or an acquire whose answer was lost.
	Token int64 // 0 for one that was never learned
	Tomb  int64 // how long a tombstone is to stay

	Before, After State
	Reply         []string
	Failed        string          // an error in place of a reply
	Heard         map[string]bool // whether somebody reads an inbox, as the server told the call
	Told          []Message

	Keys []string // with outside
}

// Message is one to an inbox. The server may refuse to publish.
type Message struct {
	Inbox, Text string
	Sent        bool
}

// Outside returns an event that is not one of a script: somebody else changes what is kept of these locks, or of all if
// there is none. Append it to [List] in one transaction with the change.
func Outside(locks ...string) string {
	text, _ := json.Marshal(map[string]any{"call": "outside", "keys": locks})
	return string(text)
}

// raw is an event as the scripts write it.
type raw struct {
	N, Now, At, Till  int64 `json:",string"`
	Call, Failed      string
	Keys, Argv, Reply []string
	Heard             [][2]string
	Told              [][3]string
	Before, After     kept
}

// kept is what Redis keeps, as it answers.
type kept struct {
	Lock, Fence                                                     string
	LockEnd, FenceEnd, LineEnd, WaitEnd, ShareEnd, HeldEnd, GoneEnd int64 `json:",string"`
	Line, Wait, Share, Held                                         []string
}

// Read takes an event apart. What is not as the scripts write it is an error.
func Read(text string) (*Event, error) {
	var r raw
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	e := &Event{N: r.N, Call: r.Call, Keys: r.Keys, Now: r.Now, At: r.At, Till: r.Till, Reply: r.Reply, Failed: r.Failed, Heard: map[string]bool{}}
	if e.Call == "outside" {
		return e, nil
	}
	if args := map[string]int{"acquire": 2, "renew": 2, "forget": 4}[e.Call]; args == 0 || len(r.Keys) == 0 || len(r.Argv) < args {
		return nil, fmt.Errorf("no call that is known in %s", text)
	}
	e.Lock, e.Owner = r.Keys[0], r.Argv[0]
	n := &numbers{}
	for _, h := range r.Heard {
		e.Heard[h[0]] = n.of(h[1]) == 1
	}
	for _, m := range r.Told {
		e.Told = append(e.Told, Message{m[0], m[1], n.of(m[2]) == 1})
	}
	switch e.Call {
	case "acquire":
		e.Terms = Terms{Limit: 1}
		if len(r.Argv) > 2 {
			e.Limit, e.Tag = n.limit(r.Argv[2])
		}
		plan := strings.Split(r.Argv[1], " ")
		if len(plan) != 3 && len(plan) != 8 {
			return nil, fmt.Errorf("a plan %q", plan)
		}
		e.Lease, e.Life, e.Block = n.of(plan[0]), n.of(plan[1]), n.of(plan[2])
		if len(plan) > 3 {
			weight, share, _ := strings.Cut(plan[5], ":")
			e.Waits, e.Entry, e.First, e.Weight, e.Share, e.Counted, e.Inbox = true, n.of(plan[3]), n.of(plan[4]), n.of(weight), share, plan[6] == "1", plan[7]
		}
	case "renew":
		e.Lease, e.Alone = n.of(r.Argv[1]), len(r.Keys) == 1
	case "forget":
		e.Token, e.Tomb = n.of(r.Argv[1]), n.of(r.Argv[3])
	}
	err := errors.Join(n.err, e.Before.read(&r.Before, e.Owner), e.After.read(&r.After, e.Owner))
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	return e, nil
}

func (s *State) read(k *kept, owner string) error {
	s.Value, s.End, s.FenceEnd, s.Held.End, s.Gone = k.Lock, k.LockEnd, k.FenceEnd, k.HeldEnd, map[string]int64{}
	s.Line.End, s.Line.OrderEnd, s.Line.SharesEnd = k.WaitEnd, k.LineEnd, k.ShareEnd
	if k.GoneEnd != 0 {
		s.Gone[owner] = k.GoneEnd
	}
	for i, end := range []int64{k.LockEnd, k.FenceEnd, k.LineEnd, k.WaitEnd, k.ShareEnd, k.HeldEnd} {
		if there := []bool{k.Lock != "", k.Fence != "", k.Line != nil, k.Wait != nil, k.Share != nil, k.Held != nil}[i]; there != (end != 0) {
			return fmt.Errorf("the end %d of what is there, %t", end, there)
		}
	}
	return errors.Join(s.readFence(k.Fence), s.readHeld(k.Held), s.Line.read(k))
}

func (s *State) readFence(text string) error {
	n, f := &numbers{}, &s.Fence
	if text == "" {
		return nil
	}
	text, f.Waits = strings.CutSuffix(text, " w")
	text, f.Several = strings.CutSuffix(text, " s")
	parts := strings.Split(text, " ")
	if len(parts) < 3 {
		return fmt.Errorf("a fence %q", text)
	}
	f.Last, f.Live, f.Since = n.of(parts[0]), n.of(parts[1]), n.of(parts[2])
	for _, lost := range parts[3:] {
		f.Lost = append(f.Lost, n.of(lost))
	}
	return n.err
}

func (s *State) readHeld(flat []string) error {
	n, h, header := &numbers{}, &s.Held, ""
	for i := 0; i+1 < len(flat); i += 2 {
		switch name, text := flat[i], flat[i+1]; name {
		case "of":
			h.Of = text
		case "cap":
			header = text
			if h.In == nil {
				h.In = map[string]Holder{}
			}
		default:
			in := n.all(text, 3)
			if h.In == nil {
				h.In = map[string]Holder{}
			}
			h.In[strings.TrimPrefix(name, "@")] = Holder{in[0], in[1], in[2]}
		}
	}
	if flat == nil {
		return nil
	}
	limit, rest, _ := strings.Cut(header, " ")
	least, tag := n.limit(limit)
	more := n.all(rest, 3)
	h.Tag, h.Next, h.Token = tag, more[1], more[2]
	if want, many := h.least(); n.err == nil && (want != least || many != more[0]) {
		return fmt.Errorf("inside it says %q, and the least limit is %d, which %d named", header, want, many)
	}
	return n.err
}

// read reads the line. A waiter must be in both of its parts, and a tag too.
func (l *Line) read(k *kept) error {
	n, hash, scores := &numbers{}, map[string]string{}, map[string]string{}
	for i := 0; i+1 < len(k.Wait); i += 2 {
		hash[k.Wait[i]] = k.Wait[i+1]
	}
	for i := 0; i+1 < len(k.Share); i += 2 {
		scores[k.Share[i]] = k.Share[i+1]
	}
	take := func(from map[string]string, name string) string {
		text, ok := from[name]
		if !ok && n.err == nil {
			n.err = fmt.Errorf("the line lacks %q", name)
		}
		delete(from, name)
		return text
	}
	l.Tags, l.Kept = map[string]Tag{}, map[string]int64{}
	for _, member := range k.Line {
		if member == "" {
			l.Shares = true
			l.V, _ = strconv.ParseFloat(take(hash, "v"), 64)
			continue
		}
		share, rest, _ := strings.Cut(member, " ")
		if len(rest) < 17 {
			return fmt.Errorf("a waiter %q", member)
		}
		w := Waiter{Owner: rest[16:], Share: share, At: n.of(rest[:16])}
		parts := strings.Split(take(hash, w.Owner), " ")
		if len(parts) != 9 {
			return fmt.Errorf("a waiter %q", parts)
		}
		weight, _, _ := strings.Cut(parts[6], ":")
		w.Expiry, w.First, w.Life, w.Block, w.Weight = n.of(parts[0]), n.of(parts[2]), n.of(parts[3]), n.of(parts[4]), n.of(weight)
		w.Limit, w.Tag = n.limit(parts[5])
		w.Counted, w.Inbox = parts[7] == "1", parts[8]
		l.Waiters = append(l.Waiters, w)
		if _, ok := l.Tags[share]; l.Shares && !ok {
			tag := n.all(take(hash, "="+share), 2)
			if l.Tags[share] = (Tag{tag[0], tag[1]}); n.of(take(scores, fmt.Sprintf("=%016d%s", tag[1], share))) != tag[0] {
				return fmt.Errorf("two tags of share %q", share)
			}
		}
	}
	if mute, ok := hash["mute"]; ok {
		l.Mute = n.of(mute)
		delete(hash, "mute")
	}
	for name, score := range scores {
		if strings.HasPrefix(name, "-") {
			l.Kept[name[1:]] = n.of(score) - 1<<52
			delete(scores, name)
		}
	}
	if len(hash)+len(scores) > 0 {
		return fmt.Errorf("left in the line: %v %v", hash, scores)
	}
	return n.err
}

// numbers reads numbers, and keeps the first error.
type numbers struct{ err error }

func (n *numbers) of(text string) int64 {
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil && n.err == nil {
		n.err = err
	}
	return i
}

func (n *numbers) all(text string, count int) []int64 {
	all := make([]int64, count)
	parts := strings.Split(text, " ")
	if len(parts) != count && n.err == nil {
		n.err = fmt.Errorf("%q is not %d numbers", text, count)
		return all
	}
	for i := range min(count, len(parts)) {
		all[i] = n.of(parts[i])
	}
	return all
}

// limit reads a limit with a tag behind it.
func (n *numbers) limit(text string) (int64, string) {
	digits := strings.TrimLeft(text, "0123456789")
	return n.of(text[:len(text)-len(digits)]), digits
}
