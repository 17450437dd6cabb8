package protocol

import (
	_ "embed"
	"fmt"
	"time"
)

var (
	//go:embed claim.lua
	claimLua string
	//go:embed tick.lua
	tickLua string
	//go:embed withdraw.lua
	withdrawLua string

	claimScript    = newScript(1, claimLua)
	TickScript     = newScript(2, startedLua+tickLua)
	WithdrawScript = newScript(2, withdrawLua)
)

// Window bounds the ticks that are accepted: how far ahead of the server's clock, how far behind it, and how far apart.
type Window struct{ Ahead, Behind, Gap time.Duration }

// Claim returns a call of claim.lua, for a tick in µs.
func Claim(buf []any, n *Names, tick int64, claimant string, w Window) (*Script, []any) {
	return claimScript.args(buf, n.Mark(), tick, claimant, w.Ahead.Microseconds(), w.Behind.Microseconds(), w.Gap.Microseconds())
}

// Claimed is the result of a claim.
type Claimed struct {
	Code ClaimCode
	Now  int64 // the server's TIME in µs, with ClaimEarly and ClaimLate
}

// ClaimCode is the first element of a reply of claim.lua or tick.lua.
type ClaimCode int64

const (
	ClaimGranted ClaimCode = 1
	ClaimTaken   ClaimCode = 0
	ClaimEarly   ClaimCode = -1 // the tick is too far ahead of the server's clock
	ClaimLate    ClaimCode = -2 // the tick is too far behind it
	ClaimGone    ClaimCode = -3 // withdrawn before
	ClaimYoung   ClaimCode = -5 // the master started a short time ago
	ClaimOther   ClaimCode = 2  // this very tick is another claimant's
)

// ReadClaimed reads a reply of claim.lua. The result of several masters is a Claimed already, which it returns as it
// is.
func ReadClaimed(val any) (c Claimed, ok bool) {
	switch r := val.(type) {
	case Claimed:
		return r, true
	case int64:
		c.Code = ClaimCode(r)
		return c, c.Code == ClaimGranted || c.Code == ClaimTaken || c.Code == ClaimOther
	case []any:
		f := fields{list: r}
		c = Claimed{ClaimCode(f.number()), f.number()}
		return c, f.complete() && (c.Code == ClaimEarly || c.Code == ClaimLate)
	}
	return c, false
}

// TickPlan returns the second argument of tick.lua. With guard, a master that started a short time ago refuses the
// ticks that it may have granted before.
func TickPlan(tick int64, w Window, guard bool) string {
	n := 0
	if guard {
		n = 1
	}
	return fmt.Sprintf("%d %d %d %d %d", tick, w.Ahead.Microseconds(), w.Behind.Microseconds(), w.Gap.Microseconds(), n)
}

// Tick returns a call of tick.lua, which is claim.lua for one of several masters.
func Tick(buf []any, n *Names, gone, claimant, plan string) (*Script, []any) {
	return TickScript.args(buf, n.Mark(), gone, claimant, plan)
}

// Withdraw returns a call that takes back what Tick did.
func Withdraw(buf []any, n *Names, gone, claimant string) (*Script, []any) {
	return WithdrawScript.args(buf, n.Mark(), gone, claimant, tombstoneLife)
}

// Ticked is a reply of tick.lua.
type Ticked struct {
	Claimed
	Tick     int64  // the tick of the mark, with ClaimTaken
	Claimant string // the claimant of the mark, with ClaimTaken
	Young    int64  // with ClaimYoung: for how many ms more the master is too young; -1 unknown
}

// ReadTicked reads a reply of tick.lua.
func ReadTicked(val any) (t Ticked, ok bool) {
	f := fieldsOf(val)
	t.Claimed = Claimed{ClaimCode(f.number()), f.number()}
	_ = f.next() // see ReadServer
	switch t.Code {
	case ClaimGranted, ClaimEarly, ClaimLate:
		return t, !f.bad
	case ClaimTaken:
		t.Tick, t.Claimant = f.number(), f.text()
	case ClaimYoung:
		t.Young = f.number()
	default:
		return t, false
	}
	return t, f.complete()
}
