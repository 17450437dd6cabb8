package model

// World is Redis, the processes and what is under way between them, at one moment. It is compared and hashed as a
// whole: what no longer matters is set to zero, and its structs have no gaps.
type World struct {
	Server  Server
	Tenures [MaxOwners]Tenure
	Net     [maxMessages]Message // what is under way; sorted, as it may arrive in any order
	Held    Token                // the largest with which a hold began
	Alone   Token                // the same of holds with a limit of 1
	Drawn   Token                // the largest that Redis gave away or reserved
	Given   Token                // with which Redis gave the lock to its owner, where that is one
	Procs   [maxProcs]Process

	Length uint8 // of Net
	Void   uint8 // tenures that somebody else ended in Redis, and that Redis has not confirmed since; a bit for each
	Idle   int8  // ticks for which there was room, somebody waited and nothing was under way

	// What has happened, of what is bounded.
	Losses, Deaths, Naps, Deafs, Backs, Forwards, Foreigns, Dels, Flushes int8
}

const (
	maxProcs    = 3
	perProc     = 2 // tenures
	maxMessages = 8
)

// Process is a Locker.
type Process struct {
	Born   uint8 // how many tenures it has begun
	Dead   bool
	Asleep bool // suspended, with its monotonic clock
	Deaf   bool // its inbox has no connection
}

// Phase is where a tenure stands in the process.
type Phase uint8

// The phases.
const (
	Unborn    Phase = iota
	Asking          // an acquire is unanswered
	Waiting         // for a grant or the next look
	Holding         // until the deadline
	Lapsed          // the hold is over, and not released yet
	Releasing       // a release waits for its answer
	Undoing         // a forget in the background
	Forgotten       // nothing is left of it
	Left            // its forget was given up
	Perished        // with its process
)

// Tenure is what a process knows of one; see tenure and hold in core.
type Tenure struct {
	Token Token // as the next forget tells it
	Held  Token // of the hold
	Last  Token // at the latest look
	Freed Token // in truth: with what Redis had the lock as its when a forget of its own freed it

	Phase   Phase
	Known   bool // to the inbox
	InLine  bool
	Resent  bool // a forget
	Strayed bool // a grant to it was heard of after it was over

	Pending, Forgets, Renews, Extends, Handed int8 // counts

	Due      Time // how long it waits for its next look, if more than lookAgain
	Asked    Time // when it last sent a look or a forget; monotonic
	Look     Time // when the answered look was sent; monotonic
	LookWall Time // the same by the wall clock
	Seen     Time // Redis' time at it
	Deadline Time // monotonic
	Wall     Time // the same by the wall clock
}

// Kind of a message.
type Kind uint8

// The kinds of messages: commands, answers and grants.
const (
	None Kind = iota
	CmdAcquire
	CmdRenew
	CmdForget
	Granted
	Refused
	Renewed
	Forgot
	Push
)

// Message is under way. Its meaning goes with the kind.
type Message struct {
	Token  Token // of a forget, a grant; the last one of a refusal
	Kind   Kind
	Tenure uint8 // index
	Heard  bool  // somebody waits for the answer
	Flag   bool  // acquire: waits; forget: tombstone; refused: in line
	Told   bool  // acquire: through the inbox
	At     Time  // when the command was sent; monotonic
	Wall   Time  // the same by the wall clock
	A      Time  // renew: lease; renewed: left; refused and push: Redis' time; forgot: how
	Left   Time  // refused: of a lease
}

func (m *Message) order() uint64 {
	b := func(v bool) uint64 {
		if v {
			return 1
		}
		return 0
	}
	return uint64(m.Kind)<<56 | uint64(m.Tenure)<<48 | b(m.Heard)<<41 | b(m.Flag)<<40 | b(m.Told)<<42 | uint64(uint8(m.At))<<32 |
		uint64(uint8(m.Wall))<<24 | uint64(uint8(m.A))<<16 | uint64(uint8(m.Left))<<8
}

func (w *World) put(m Message) {
	i := int(w.Length)
	for k := m.order(); i > 0; i-- {
		if o := &w.Net[i-1]; o.order() < k || o.order() == k && o.Token <= m.Token {
			break
		}
		w.Net[i] = w.Net[i-1]
	}
	w.Net[i] = m
	w.Length++
}

func (w *World) take(i int) Message {
	m := w.Net[i]
	copy(w.Net[i:], w.Net[i+1:w.Length])
	w.Length--
	w.Net[w.Length] = Message{}
	return m
}

// rewrite passes each message that is under way through f, which says whether it stays.
func (w *World) rewrite(f func(m *Message) bool) {
	net, n := w.Net, int(w.Length)
	w.Net, w.Length = [maxMessages]Message{}, 0
	for i := range n {
		if f(&net[i]) {
			w.put(net[i])
		}
	}
}

func (w *World) runs(p int) bool { return !w.Procs[p].Dead && !w.Procs[p].Asleep }

func proc(t int) int { return t / perProc }

// Scenario is a part of what can happen that is small enough to be searched, and the rule that is left out of it.
type Scenario struct {
	Name     string
	Params   Params
	Extend   Time // lease that an extension asks for
	Programs []Program
	Held     bool // the first process has the lock at the beginning

	Late int8 // how many commands and answers may be under way at once that nobody waits for any more

	// How often what may happen.
	Losses, Deaths, Naps, Deafs int8
	Backs, Forwards             int8 // Redis' clock is set, forward only while that shortens nobody's lease
	Foreigns                    int8 // a client that knows nothing of all this takes the lock if it is free
	Dels                        int8 // somebody deletes the lock
	Flushes                     int8 // Redis forgets everything; a tick goes by, as with the clock of tokens

	Step   Time // by so much
	Closed bool // a process that dies closes its inbox, as Redis notices
	Prompt bool // what somebody waits for comes within the tick; only grants are slow

	Leisurely bool // waiters look when they were told that a lease ends, and not every tick

	Only Breach // no other counts, unless it is Kept

	plain bool // tokens are what they are: for people
}

// Program is what a process does.
type Program struct {
	Limit    uint8 // 0 is 1
	Tenures  uint8 // one after the other
	Try      bool  // without waiting
	GivesUp  bool  // a wait may be cancelled
	Renews   int8
	Extends  int8
	HandsOn  bool // within the process
	Releases bool // or else it holds for ever
	Forgets  int8 // how often one is sent
}

// noon is what all clocks always show. When time goes by it is the rest that moves, so that worlds which differ
// only in how late it is are the same. What is more than past ago is of no consequence, and counts as just that.
const (
	noon Time = 20
	past Time = 4
	ages Time = 9 // where Redis' clock is set
)

// lookAgain is how long a waiter waits between looks.
const lookAgain = 1

// run is one step of a world.
type run struct {
	*World
	sc     *Scenario
	p      *Params
	breach Breach
}

func (r *run) breaks(b Breach) {
	if r.breach == Kept && (r.sc.Only == Kept || r.sc.Only == b) {
		r.breach = b
	}
}

func (r *run) without(rule Rule) bool { return r.p.Without == rule }

func (r *run) owner(t int) Owner {
	if r.without(OwnerNamesOneTenure) {
		t -= t % perProc
	}
	return Owner(t + 1)
}

func (r *run) limit(t int) uint8 { return max(1, r.sc.Programs[proc(t)].Limit) }

func (r *run) void(t int) bool { return r.Void&(1<<t) != 0 }

// tenureOf is the tenure that an owner id names, the latest where it names several.
func (r *run) tenureOf(o Owner) int {
	t := int(o) - 1
	if r.without(OwnerNamesOneTenure) {
		t += max(0, int(r.Procs[proc(t)].Born)-1)
	}
	return t
}

// Begin is the world in which nothing has happened.
func (sc *Scenario) Begin() World {
	w := World{Server: Server{Now: noon}}
	if sc.Held {
		for _, a := range []Action{{Kind: Start}, {Kind: Deliver}, {Kind: Deliver}} {
			sc.Apply(&w, a)
		}
	}
	return w
}
