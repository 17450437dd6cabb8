package protocol

import (
	_ "embed"
	"fmt"
	"strconv"
	"time"
)

var (
	//go:embed started.lua
	startedLua string
	//go:embed vote.lua
	voteLua string

	//go:embed fastvote.lua
	fastVoteLua string

	VoteScript = newScript(5, startedLua+fastVoteLua+fenceLua+lineLua+nudgeLua+voteLua)
)

// Vote returns a call of vote.lua. gone is the tombstone of the attempt.
func Vote(buf []any, n *Names, gone, owner, plan *string) (*Script, []any) {
	return VoteScript.args(buf, &n.Lock, &n.Fence, gone, &n.Line, &n.Waits, owner, plan)
}

// Proposal is what a call of vote.lua asks for.
type Proposal struct {
	Token      int64
	Lease      time.Duration
	Block      int
	Quarantine time.Duration
	Behind     time.Duration // how far a token may be behind the master's clock
	Passed     time.Duration // since the attempt began
	Ahead      time.Duration // how far a token may be ahead of it
	Started    bool          // the master is to report the id of its run
	Place      string        // see VotePlace
}

// Plan returns the second argument of vote.lua.
func (p Proposal) Plan() string {
	started := int64(0)
	if p.Started {
		started = 1
	}
	lease := p.Lease.Milliseconds()
	var room [160]byte
	text := strconv.AppendInt(room[:0], p.Token, 10)
	for _, n := range [...]int64{
		lease, lease + FenceLife.Milliseconds(), int64(p.Block), p.Quarantine.Milliseconds(),
		p.Behind.Microseconds(), p.Passed.Microseconds(), p.Ahead.Microseconds(), started,
	} {
		text = strconv.AppendInt(append(text, ' '), n, 10)
	}
	return string(append(text, p.Place...))
}

// VotePlace returns what vote.lua needs to know of a waiter: its id, how long a free lock is kept for it, and its
// inbox.
func VotePlace(waiter string, reserve time.Duration, inbox string) string {
	return fmt.Sprint(" ", waiter, " ", EntryLife.Milliseconds(), " ", reserve.Milliseconds(), " 1 ", inbox)
}

// VoteCode is the first element of a reply of vote.lua.
type VoteCode int64

const (
	VoteGranted   VoteCode = 1
	VoteHeld      VoteCode = 0
	VoteGone      VoteCode = -1 // the attempt was undone
	VoteExhausted VoteCode = -2
	VoteLow       VoteCode = -3 // the token must be larger than N
	VoteHigh      VoteCode = -4
	VoteYoung     VoteCode = -5 // the master started a short time ago
)

// Voted is a reply of vote.lua.
type Voted struct {
	Code  VoteCode
	N     int64  // the last token: recorded, issued or to be exceeded; with VoteYoung, for how many ms more
	Value string // of the lock, if it is held
	Left  int64  // what is left of its lease, in ms
}

// ReadVoted reads a reply of vote.lua.
func ReadVoted(val any) (v Voted, ok bool) {
	f := fieldsOf(val)
	v.Code = VoteCode(f.number())
	_, _ = f.number(), f.next() // see ReadServer
	v.N = f.number()
	if v.Code == VoteHeld {
		v.Value, _ = f.next().(string)
		v.Left, _ = f.next().(int64)
		return v, f.complete()
	}
	return v, !f.bad
}

// ReadServer reads what each reply of vote.lua and tick.lua says about the server: its TIME in µs and the id of its
// run, which is "" if it was not asked for.
func ReadServer(val any) (at int64, run string, ok bool) {
	f := fieldsOf(val)
	_ = f.next()
	at = f.number()
	run, _ = f.next().(string)
	return at, run, !f.bad
}
