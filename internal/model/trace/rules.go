package trace

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Rule is one sentence of the specification, which can be left out.
type Rule string

// The rules. A call is of an owner, and "the clock" is the server's.
const (
	Expire Rule = "what has an end is gone after it, and between two calls nothing else changes"

	// To take, to keep and to give back.
	Take         Rule = "an acquire takes a free lock, with its lease"
	Refuse       Rule = "an acquire of a held lock learns the holder, what is left of its lease, its own place in line, and the fence"
	Again        Rule = "an acquire that comes again gets the token that it got"
	AgainLonger  Rule = "an acquire that comes again does not shorten the lease"
	NeverShorter Rule = "a renewal does not shorten a lease"
	Renew        Rule = "a renewal lengthens the lease of its owner"
	OwnOnly      Rule = "nobody's renewal or release is about the lock of another"
	Release      Rule = "a release frees the lock"
	Tombstone    Rule = "a release that may have overtaken its acquire leaves a tombstone"
	Barred       Rule = "an acquire that finds its tombstone gets nothing"

	// The token, and what the fence remembers.
	AfterClock Rule = "a token is at least the clock, in µs"
	AfterLast  Rule = "a token is larger than the last one"
	Block      Rule = "a tenure has as many tokens as it asked for; the next one's are behind them"
	Lost       Rule = "a tenure that has not been released when the next begins is remembered as lost, and a release of it learns that"
	Eight      Rule = "a fence remembers eight losses, and knows nothing of what is older than the first of them"
	Already    Rule = "a release that comes again learns that it was released"
	Unknown    Rule = "a release of a tenure of which the fence knows nothing learns that"
	FenceLife  Rule = "a fence outlives the lease by a minute, and by as much as its last token is ahead of the clock"

	// The waiting line.
	Join       Rule = "an acquire that is refused and waits joins the line"
	KeepsPlace Rule = "a waiter that looks again keeps its place"
	Arrivals   Rule = "a waiter is behind those of its share that came before it, even in the same µs"
	MarkW      Rule = "a fence has a mark while somebody may wait"
	Turn       Rule = "a free lock goes to the first in line, and not to the caller that comes"
	Serve      Rule = "the lock that a release leaves free goes to the first in line"
	FirstLease Rule = "a waiter gets a first lease, which is short"
	Tell       Rule = "a waiter that gets the lock is told so: owner, token, clock and lock"
	Prune      Rule = "a waiter that has not looked for long is dropped"
	Pass       Rule = "a waiter whose inbox nobody reads is passed over, and keeps its place"
	Mute       Rule = "a waiter to which the server refuses to publish gets nothing and keeps its place, and for ten minutes nobody is told"
	Leave      Rule = "a forget takes its owner out of the line"

	// Several that hold the lock together.
	Beside        Rule = "an owner enters beside others if all are then no more than the least of their limits"
	Readers       Rule = "an owner without a limit is never beside one that has one"
	SameID        Rule = "owners of one re-entry id enter beside each other"
	FirstIsIn     Rule = "while the first owner of a re-entry id is in, others of it pass the line"
	FirstEnd      Rule = "a refusal tells when the first of several leases ends, at the earliest"
	EntrantServes Rule = "after an acquire that enters, waiters enter too, as many as may"
	LeaverServes  Rule = "after one that leaves, waiters enter, as many as may"
	Recount       Rule = "an owner whose lease is over is taken out when its place is needed, and is remembered as lost"
	Abandon       Rule = "when a lock is gone, the owners inside are remembered as lost once the next tenure begins"
	Sustain       Rule = "the lock lasts as long as the longest lease inside, the fence a minute longer, the list of the owners two minutes"
	MarkS         Rule = "a fence has a mark while there is a list of owners inside"

	// Shares of the line.
	ShareTurn  Rule = "the share with the least tag is next, of equal ones the one whose first waiter came first"
	Step       Rule = "a grant raises the tag of its share by 5040, divided by the weight"
	Virtual    Rule = "virtual time rises with a grant, by the step divided by one more than the shares that wait"
	StartsAtV  Rule = "a share that begins to wait has the tag that is kept for it, or virtual time"
	KeepsTag   Rule = "the tag of a share that waits no more is kept while it is ahead of virtual time"
	ForgetsTag Rule = "a tag that is kept is forgotten once virtual time is there"
	CrowdLater Rule = "waiters without a share are a step behind when the first share comes"
	Plain      Rule = "a line forgets its shares when nobody waits, or only waiters without one do and are a step ahead"
	MovesUp    Rule = "a share that is passed over moves up to virtual time"
)

// Rules are all of them.
var Rules = []Rule{
	Expire, Take, Refuse, Again, AgainLonger, NeverShorter, Renew, OwnOnly, Release, Tombstone, Barred, AfterClock, AfterLast, Block, Lost, Eight,
	Already, Unknown, FenceLife, Join, KeepsPlace, Arrivals, MarkW, Turn, Serve, FirstLease, Tell, Prune, Pass, Mute, Leave, Beside,
	Readers, SameID, FirstIsIn, FirstEnd, EntrantServes, LeaverServes, Recount, Abandon, Sustain, MarkS, ShareTurn, Step, Virtual,
	StartsAtV, KeepsTag, ForgetsTag, CrowdLater, Plain, MovesUp,
}

const (
	minute    = 60_000  // ms that a fence outlives a lease
	muteFor   = 600_000 // ms that a server counts as one that does not publish
	losses    = 8
	noTokens  = 1 << 53 // from here on
	atOnce    = 64      // waiters that one call lets in, at most
	unlimited = 1 << 20 // the limit of a reader
	unit      = 5040
	maxTag    = 1 << 51
)

// act is one call that is under way. Moments are in ms; Now, which is TIME, is in µs.
type act struct {
	*State
	*Event
	without Rule
	stored  Fence // as Redis has it; a call may think of another until it ends
	idle    bool  // nobody waited when the call began
	stood   bool  // the call has joined the line
	deaf    int   // why its inbox is of no use
	told    []Message
}

func (a *act) has(r Rule) bool { return a.without != r }
func (a *act) ms() int64       { return a.Now / 1000 }

// Explain is the specification: what a call leaves behind, what it answers and what it publishes, from what it found.
func Explain(before *State, e *Event, without Rule) (after *State, reply []string, told []Message) {
	a := &act{State: before.clone(), Event: e, without: without, stored: before.Fence}
	switch e.Call {
	case "acquire":
		reply = a.acquire()
	case "renew":
		reply = a.renew()
	case "forget":
		reply = a.forget()
	}
	if len(a.Line.Waiters) == 0 {
		a.Line.OrderEnd, a.Line.SharesEnd = 0, 0
		if a.Line.Mute == 0 {
			a.Line = Line{}
		}
	}
	if !a.Line.Shares {
		a.Line.SharesEnd = 0
	}
	return a.State, reply, a.told
}

func (a *act) acquire() []string {
	if a.Gone[a.Owner] != 0 && a.has(Barred) {
		return []string{"-1"}
	}
	left := a.left(a.End)
	if a.Value == a.Owner {
		a.lengthen(&a.End, a.Lease, AgainLonger)
		if a.Fence.Live != 0 && a.has(Again) {
			return number(a.Fence.Live)
		}
	}
	token, _, over := a.again(a.Lease, AgainLonger)
	switch {
	case token != 0 && a.has(Again):
		return number(token)
	case over:
		a.recount()
	}
	together, waits := a.together(), len(a.Line.Waiters) > 0
	a.idle = !waits
	switch {
	case a.Value != "" && a.Value != a.Owner && !together, a.Value == "" && !a.has(Take):
		return a.refuse(left)
	case together && a.Tag != "" && a.Tag == a.Held.Tag && a.Held.In[a.Value[1:]].Ends > a.ms() && a.has(FirstIsIn):
		a.leave(a.Owner, false)
	case waits && (a.Value == "" || together):
		a.stand() // a share that comes may be next
		if blocked, lease := a.serve(a.Owner); (blocked || !a.admits(&a.Terms)) && a.has(Turn) {
			return a.refuse(lease)
		}
		a.leave(a.Owner, true)
	case together && !a.admits(&a.Terms):
		return a.refuse(0)
	}
	token, _ = a.grant(a.Owner, &a.Terms, a.Lease)
	if token == 0 {
		return []string{"-2"}
	}
	if waits && a.together() && a.has(EntrantServes) {
		a.serve("")
	}
	return number(token)
}

// refuse answers an acquire that gets nothing.
func (a *act) refuse(left int64) []string {
	a.stand()
	place, holders := 0, []string(nil)
	if a.stood {
		place = a.place(a.Owner)
	}
	if a.together() {
		holders = []string{strconv.Itoa(len(a.Held.In))}
		if a.has(FirstEnd) {
			left = max(1, a.Held.Next-a.ms())
		}
	}
	if !a.has(Refuse) {
		left, place = 0, 0
	}
	return append([]string{"0", fmt.Sprint(left), a.Value, fmt.Sprint(place), fmt.Sprint(a.Now), a.Fence.String(), fmt.Sprint(a.deaf)}, holders...)
}

func (a *act) renew() []string {
	if a.Alone {
		left := a.left(a.End)
		switch {
		case a.Value != a.Owner && (a.has(OwnOnly) || a.Value == ""):
			return []string{"0"}
		case a.Lease == 0:
			return number(left)
		case a.has(Renew):
			a.lengthen(&a.End, a.Lease, NeverShorter)
		}
		return number(a.left(a.End))
	}
	_, left, _ := a.again(a.Lease, NeverShorter)
	return number(left)
}

func (a *act) forget() []string {
	held := a.Value == a.Owner || a.Value != "" && !a.has(OwnOnly)
	if held && a.has(Release) {
		a.Value, a.End = "", 0
	}
	fence, had, was, nothing := a.Fence, int64(0), false, false
	if !held && (fence.Last == 0 || fence.Several || strings.HasPrefix(a.Value, "=")) {
		had, was = a.part()
		nothing = had == 0 && !was && fence.Several && len(a.Held.In) == 0
	}
	if a.Tomb != 0 && a.has(Tombstone) {
		a.Gone[a.Owner] = a.At + a.Tomb
	}
	if !held && had == 0 && a.has(Leave) {
		a.leave(a.Owner, false)
	}
	life := int64(0)
	if held {
		last, since := fence.Last, fence.Since
		if fence.Live != a.Token || a.Token == 0 {
			last = max(last, a.Token)
			if since == 0 {
				since = a.Token
			}
			life = minute + a.ahead(last)
		}
		if a.Fence = (Fence{}); last != 0 {
			a.Fence = Fence{Last: last, Since: since, Lost: fence.Lost}
		}
	}
	waits := false
	if a.Value == "" && a.has(Serve) || a.together() && a.has(LeaverServes) {
		if waits = len(a.Line.Waiters) > 0; waits {
			a.serve("")
		}
	}
	if a.Fence.Last != 0 && a.Fence.String() != a.stored.String() {
		a.Fence.Waits = a.Fence.Waits || held && waits && a.has(MarkW)
		if life != 0 && a.has(FenceLife) {
			a.FenceEnd = a.At + life
		}
	}
	lost := slices.Contains(fence.Lost, a.Token)
	switch {
	case had != 0 && (a.Token == 0 || a.Token == had):
		return []string{"1"}
	case had != 0 || was, a.Token == 0 && !held:
		return []string{"0"}
	case held && (!lost || !a.has(Lost)):
		return []string{"1"}
	case held:
		return []string{"0"}
	case a.together() && a.Held.Token == a.Token:
		return []string{"2"}
	case (fence.Last == 0 || a.Token < fence.Since || a.Token > fence.Last) && a.has(Unknown):
		return []string{"3"}
	case (a.Token == fence.Live || lost) && a.has(Lost):
		return []string{"0"}
	case nothing:
		return []string{"3"}
	case !a.has(Already):
		return []string{"0"}
	}
	return []string{"2"}
}

// left is what is left until an end, as PTTL answers.
func (a *act) left(end int64) int64 {
	switch end {
	case 0:
		return -2
	case Never:
		return -1
	}
	return max(0, end-a.At)
}

// ahead is by how many ms a token is ahead of the clock.
func (a *act) ahead(token int64) int64 { return max(0, (token-a.Now+999)/1000) }

// lengthen has a lease end so many ms from now, if that is later, as the rule says.
func (a *act) lengthen(end *int64, lease int64, later Rule) {
	if a.left(*end) < lease || !a.has(later) {
		*end = a.At + lease
	}
}

// grant lets owner in. It returns the token, or 0 if there are no more, and what takes all that back.
func (a *act) grant(owner string, w *Terms, lease int64) (token int64, undo func()) {
	several, together, joins := w.Limit > 1 || w.Tag != "", a.together(), a.Value != ""
	if !together && (several || a.Fence.Several) && a.has(Abandon) {
		var all []int64
		for _, in := range a.Held.In {
			all = append(all, in.Token)
		}
		a.bury(all)
		a.Held, a.Fence.Several = Held{}, false
	}
	before, held, life := a.Fence, a.Held.clone(), w.Life
	if token = a.Held.Token; !together || w.Tag == "" {
		if token = a.draw(w); token == 0 {
			return 0, nil
		}
		life += a.ahead(a.Fence.Last)
		a.Fence.Several = several && a.has(MarkS)
		a.Fence.Waits = !a.idle && a.has(MarkW)
		a.stored = a.Fence
		a.FenceEnd = a.At + life
		if !a.has(FenceLife) {
			a.FenceEnd = a.At + lease
		}
		if !joins {
			a.Value, a.End = owner, a.At+lease
		}
	}
	if several {
		in := Holder{Ends: a.ms() + lease, Limit: w.Limit, Token: token}
		if w.Tag != "" {
			in.Token = 0
		}
		if !together {
			if a.Value = "=" + owner; w.Tag == "" {
				a.Value, _, _ = strings.Cut(a.Value, ":")
			}
			a.Held = Held{Of: a.Value, Tag: w.Tag, Next: in.Ends, Token: token - in.Token, In: map[string]Holder{}}
			a.Held.End = a.At + max(lease+2*minute, life+minute)
		}
		a.Held.Next = min(a.Held.Next, in.Ends)
		a.Held.In[owner] = in
		if joins && a.has(Sustain) {
			a.sustain(lease)
		}
	}
	return token, func() {
		if joins {
			end := a.Held.End
			a.Held = held
			a.Held.End = end
			return
		}
		if before.Last == 0 {
			before = a.Fence
			before.Live = 0
		}
		a.Value, a.End, a.Held, a.Fence = "", 0, Held{}, before
	}
}

// draw takes the next tokens from the fence.
func (a *act) draw(w *Terms) (token int64) {
	f := &a.Fence
	if a.has(AfterClock) {
		token = a.Now
	}
	if a.has(AfterLast) {
		token = max(token, f.Last+1)
	}
	if token > noTokens-w.Block {
		return 0
	}
	if f.Live != 0 && a.has(Lost) {
		a.record(f.Live)
	}
	if f.Since == 0 {
		f.Since = token
	}
	f.Live = token
	if w.Limit > 1 {
		f.Live = 0
	}
	if f.Last = max(token, f.Last); a.has(Block) {
		f.Last = max(token+w.Block-1, f.Last)
	}
	return token
}

// record remembers a tenure as lost.
func (a *act) record(token int64) {
	f := &a.Fence
	f.Lost = append(slices.Clone(f.Lost), token)
	if len(f.Lost) > losses && a.has(Eight) {
		f.Since, f.Lost = max(f.Since, f.Lost[0]+1), f.Lost[1:]
	}
}

// bury is record for tenures that were inside together. 0 stands for the one token of a re-entry id.
func (a *act) bury(all []int64) {
	slices.Sort(all)
	for _, token := range all {
		if token != 0 && token >= a.Fence.Since && token <= a.Fence.Last && a.has(Lost) {
			a.record(token)
		}
	}
}

// together reports whether the lock is held by those on the list.
func (a *act) together() bool { return strings.HasPrefix(a.Value, "=") && a.Held.Of == a.Value }

// admits reports whether a call may enter now.
func (a *act) admits(w *Terms) bool {
	if a.Value == "" {
		return true
	}
	if !a.together() || a.roomy(w) {
		return a.together()
	}
	if a.Now < a.Held.Next*1000 {
		return false
	}
	a.recount()
	return a.Value == "" || a.roomy(w)
}

func (a *act) roomy(w *Terms) bool {
	if w.Tag != "" && w.Tag == a.Held.Tag && a.has(SameID) {
		return true
	}
	least, _ := a.Held.least()
	alike := (least == unlimited) == (w.Limit == unlimited) || !a.has(Readers)
	if !a.has(Beside) {
		least = w.Limit
	}
	return int64(len(a.Held.In)) < min(least, w.Limit) && alike
}

// full reports whether nobody may enter, whatever it asks for.
func (a *act) full() bool {
	crowded := func() bool {
		least, _ := a.Held.least()
		return a.together() && a.Held.Tag == "" && int64(len(a.Held.In)) >= least
	}
	if crowded() && a.Now >= a.Held.Next*1000 {
		a.recount()
	}
	return crowded()
}

// recount takes out those whose lease is over.
func (a *act) recount() {
	if !a.has(Recount) {
		return
	}
	var dead []int64
	next, till := int64(math.MaxInt64), int64(0)
	for owner, in := range a.Held.In {
		if in.Ends <= a.ms() {
			dead = append(dead, in.Token)
			delete(a.Held.In, owner)
			continue
		}
		next, till = min(next, in.Ends), max(till, in.Ends)
	}
	a.bury(dead)
	if a.Held.Next, a.End = next, a.At+till-a.ms(); len(a.Held.In) == 0 {
		a.Value, a.End, a.Held, a.Fence.Several = "", 0, Held{}, false
	}
}

// again lengthens the lease of an owner inside. It returns its token and what is left, or that its lease is over.
func (a *act) again(lease int64, later Rule) (token, left int64, over bool) {
	in, ok := a.Held.In[a.Owner]
	if !ok || !a.together() {
		return 0, 0, false
	}
	if in.Ends <= a.ms() {
		return 0, 0, true
	}
	if lease > 0 && a.has(Renew) {
		if in.Ends = max(in.Ends, a.ms()+lease); !a.has(later) {
			in.Ends = a.ms() + lease
		}
		a.Held.In[a.Owner] = in
		if a.has(Sustain) {
			a.sustain(in.Ends - a.ms())
		}
	}
	return max(in.Token, a.Held.Token), in.Ends - a.ms(), false
}

func (a *act) sustain(lease int64) {
	fence := a.left(a.FenceEnd)
	if a.left(a.End) < lease {
		a.End = a.At + lease
	}
	left := a.left(a.End)
	if fence >= 0 {
		a.FenceEnd = max(a.FenceEnd, a.At+left+minute)
	}
	a.Held.End = max(a.Held.End, a.At+max(left+2*minute, fence+minute))
}

// part takes the owner off the list. It returns its token, or that it was on the list without holding the lock.
func (a *act) part() (token int64, was bool) {
	in, ok := a.Held.In[a.Owner]
	switch {
	case !ok:
		return 0, false
	case !a.together():
		return 0, true
	case in.Ends <= a.ms():
		a.recount()
		return 0, true
	}
	least, many := a.Held.least()
	token, tag := max(in.Token, a.Held.Token), a.Held.Tag
	if delete(a.Held.In, a.Owner); tag != "" || in.Limit == least && many == 1 {
		a.recount()
	}
	if tag != "" && a.Value == "" {
		a.Fence.Live = 0
	}
	return token, false
}

// stand joins the line, if the call is to wait.
func (a *act) stand() {
	if !a.Waits || a.stood || !a.has(Join) {
		return
	}
	a.stood = true
	l, w := &a.Line, Waiter{Owner: a.Owner, Share: a.Share, At: a.Now, Expiry: a.ms() + a.Entry, First: a.First, Terms: a.Terms,
		Weight: a.Weight, Counted: a.Counted, Inbox: a.Inbox}
	if w.Inbox != "-" && a.muted() {
		a.deaf = 2
	}
	if !a.heard(&w) {
		a.deaf = 1
	}
	if a.deaf > 0 {
		w.Inbox = "-" // it looks on its own, and is not passed over
	}
	i := l.find(w.Owner)
	if i >= 0 && !a.has(KeepsPlace) {
		l.Waiters = slices.Delete(l.Waiters, i, i+1)
		i = -1
	}
	if i >= 0 {
		w.At = l.Waiters[i].At
		l.Waiters[i] = w
	} else {
		before := l.of(w.Share)
		if len(before) > 0 && a.has(Arrivals) {
			w.At = max(w.At, before[len(before)-1].At+1)
		}
		if w.Share != "" && !l.Shares {
			l.Shares = true
			if len(l.Waiters) > 0 { // one of those has just been let in, so the new share is next
				early := int64(unit)
				if !a.has(CrowdLater) {
					early = 0
				}
				a.arise("", l.Waiters[0].At, early)
			}
		}
		l.Waiters = append(l.Waiters, w)
		slices.SortFunc(l.Waiters, func(a, b Waiter) int { return strings.Compare(a.member(), b.member()) })
		if l.Shares && len(before) == 0 {
			a.arise(w.Share, w.At, 0)
		}
	}
	l.End, l.OrderEnd = a.At+a.Entry, a.At+a.Entry
	if l.Shares {
		l.SharesEnd = l.End
	}
	a.Fence.Waits = a.Fence.Last != 0 && a.has(MarkW)
}

// serve lets in waiters in their turn, up to the first that may not enter, or up to the caller itself. It reports whether
// there is one that may not, and the lease of one that has the lock for itself.
func (a *act) serve(self string) (blocked bool, lease int64) {
	passed := map[string]int{}
	for n := 0; n < atOnce; {
		if a.full() {
			return true, 0
		}
		w := a.next(passed)
		switch {
		case w == nil || w.Owner == self:
			return false, 0
		case a.Now >= w.Expiry*1000 && a.has(Prune):
			a.remove(w, 0)
		case (!a.heard(w) || w.Inbox != "-" && a.muted()) && a.has(Pass):
			passed[w.Share]++
		case !a.admits(&w.Terms):
			return true, 0
		default:
			lease := w.First
			if !a.has(FirstLease) {
				lease = w.Life - minute
			}
			token, undo := a.grant(w.Owner, &w.Terms, lease)
			if token == 0 {
				return false, 0
			}
			if !a.tell(w, token) && a.has(Mute) {
				undo() // it would have the lock and not know it
				a.Line.Mute = a.ms() + muteFor
				passed[w.Share]++
				continue
			}
			n++
			if a.remove(w, w.Weight); !a.together() {
				return true, lease
			}
		}
	}
	return false, 0
}

// tell publishes a grant, unless the waiter looks on its own. It reports whether the server did.
func (a *act) tell(w *Waiter, token int64) bool {
	if w.Inbox == "-" || !a.has(Tell) {
		return true
	}
	sent := len(a.told) < len(a.Told) && a.Told[len(a.told)].Sent // what the server does is not for us to say
	a.told = append(a.told, Message{w.Inbox, fmt.Sprintf("%s\n%d\n%d\n%s", w.Owner, token, a.Now, a.Lock), sent})
	return sent
}

// heard reports whether somebody reads the inbox of a waiter, as far as the server knows.
func (a *act) heard(w *Waiter) bool { return w.Inbox == "-" || !w.Counted || a.Heard[w.Inbox] }

func (a *act) muted() bool { return a.Now < a.Line.Mute*1000 }

// leave takes an owner out of the line. served: it got the lock.
func (a *act) leave(owner string, served bool) {
	if i := a.Line.find(owner); i >= 0 {
		w, weight := a.Line.Waiters[i], int64(0)
		if served {
			weight = w.Weight
		}
		a.remove(&w, weight)
	}
}

// remove takes a waiter out of the line. A grant has the weight that its share is charged for.
func (a *act) remove(w *Waiter, weight int64) {
	l, share := &a.Line, w.Share
	i := l.find(w.Owner)
	l.Waiters = slices.Delete(slices.Clone(l.Waiters), i, i+1)
	rest := l.of(share)
	if !l.Shares || weight == 0 && len(rest) > 0 {
		return
	}
	tag := l.Tags[share]
	if weight > 0 {
		step := float64(unit / weight)
		if !a.has(Step) {
			step = 0
		}
		rise := step / float64(len(l.Tags)+1)
		if !a.has(Virtual) {
			rise = 0
		}
		l.V = min(max(float64(tag.N), l.V+rise), maxTag)
		for _, passed := range a.order() {
			if passed == share || !a.has(MovesUp) {
				break
			}
			l.Tags[passed] = Tag{max(l.Tags[passed].N, int64(l.V)), l.Tags[passed].At}
		}
		tag.N = min(tag.N+int64(step), maxTag)
	}
	if len(rest) > 0 {
		l.Tags[share] = Tag{tag.N, rest[0].At}
	} else {
		if delete(l.Tags, share); float64(tag.N) > l.V && a.has(KeepsTag) {
			l.Kept[share] = tag.N
		}
	}
	for other, n := range l.Kept {
		if weight > 0 && n <= int64(l.V) && a.has(ForgetsTag) {
			delete(l.Kept, other)
		}
	}
	crowd, alone := l.Tags[""]
	if len(l.Tags) == 0 || len(l.Tags) == 1 && len(l.Kept) == 0 && alone && float64(crowd.N) == l.V+unit && a.has(Plain) {
		l.Shares, l.V, l.Tags, l.Kept = false, 0, map[string]Tag{}, map[string]int64{}
	}
}

// arise gives a share that begins to wait its tag.
func (a *act) arise(share string, at, early int64) {
	l := &a.Line
	if _, ok := l.Tags[share]; ok {
		return
	}
	if early = max(early, l.Kept[share]); a.has(StartsAtV) {
		early = max(early, int64(l.V))
	}
	l.Tags[share] = Tag{early, at}
	delete(l.Kept, share)
}

// order has the shares that wait, the next one first.
func (a *act) order() []string {
	names := slices.Collect(maps.Keys(a.Line.Tags))
	if !a.Line.Shares {
		return []string{""}
	}
	slices.SortFunc(names, func(x, y string) int {
		s, t := a.Line.Tags[x], a.Line.Tags[y]
		if !a.has(ShareTurn) {
			s.N, t.N = 0, 0
		}
		return cmp.Or(cmp.Compare(s.N, t.N), cmp.Compare(s.At, t.At), strings.Compare(x, y))
	})
	return names
}

// next is the first in line, of each share behind those that were passed over.
func (a *act) next(passed map[string]int) *Waiter {
	for _, share := range a.order() {
		if all := a.Line.of(share); len(all) > passed[share] {
			return &all[passed[share]]
		}
	}
	return nil
}

// place is that of a waiter: 1 is the first. With shares, any other is an estimate.
func (a *act) place(owner string) int {
	l := &a.Line
	i := l.find(owner)
	if i < 0 || !l.Shares {
		return i + 1
	}
	share := l.Waiters[i].Share
	row := slices.IndexFunc(l.of(share), func(w Waiter) bool { return w.Owner == owner })
	return row*len(l.Tags) + slices.Index(a.order(), share) + 1
}

func number(n int64) []string { return []string{strconv.FormatInt(n, 10)} }
