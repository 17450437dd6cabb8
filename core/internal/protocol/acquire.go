package protocol

import (
	_ "embed"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

var (
	//go:embed fence.lua
	fenceLua string
	//go:embed line.lua
	lineLua string
	//go:embed turn.lua
	turnLua string
	//go:embed grant.lua
	grantLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed take.lua
	takeLua string
	//go:embed fast.lua
	fastLua string
	//go:embed held.lua
	heldLua string

	behindLua = fenceLua + lineLua + heldLua + turnLua + grantLua

	AcquireScript = newScript(5, traced("acquire", takeLua+fastLua+behindLua+acquireLua))
	PermitScript  = newScript(6, traced("acquire", "local found\n"+behindLua+acquireLua))
)

// Acquire returns a call of acquire.lua. Here and below, buf is where the arguments go. What a pointer points to must
// not change.
func Acquire(buf []any, n *Names, owner, plan *string) (*Script, []any) {
	if n.Admits != "" {
		return PermitScript.args(buf, &n.Lock, &n.Fence, &n.Gone, &n.Line, &n.Waits, &n.Held, owner, plan, &n.Admits)
	}
	return AcquireScript.args(buf, &n.Lock, &n.Fence, &n.Gone, &n.Line, &n.Waits, owner, plan)
}

// Waiting is what a call that wants to wait in line says about itself.
type Waiting struct {
	First   time.Duration // the length of a grant's first lease
	Share   string        // whose turn it takes, see turn.lua; "" for none
	Weight  int           // of a grant for the share
	Counted bool          // whether the server knows all subscribers, see line.lua
	Inbox   string        // the channel for the grant; "" if nothing can be received
}

// AcquirePlan returns the second argument of acquire.lua.
func AcquirePlan(lease time.Duration, block int, waits *Waiting) string {
	text := fmt.Sprint(lease.Milliseconds(), " ", (lease + FenceLife).Milliseconds(), " ", block)
	if waits == nil {
		return text
	}
	counted, inbox := 0, waits.Inbox
	if waits.Counted {
		counted = 1
	}
	if inbox == "" {
		inbox = "-"
	}
	return fmt.Sprint(text, " ", EntryLife.Milliseconds(), " ", waits.First.Milliseconds(), " ",
		waits.Weight, ":", url.QueryEscape(waits.Share), " ", counted, " ", inbox)
}

// Acquired is a reply of acquire.lua. A new field of the reply to a refusal changes, in this order: acquire.lua, where the
// number of holders stays the last field, as it can be nil; Acquired and ReadAcquired here; Verdict and read in package
// single; judge in acquire.go of package holdfast; the rows of TestEveryReplyOfEveryScript. A grant is a number, of take.lua
// too; there is no room for a field. What changes the lock's state changes the module's internal/model as well.
type Acquired struct {
	Token     int64 // the fencing token, or the first of a block; else 0
	Undone    bool  // the tenure was undone before
	Exhausted bool  // the tokens have reached 2^53
	Held      bool  // somebody else holds the lock: the fields below are about that

	Left    int64  // what is left of the lease, in ms; -1 if it does not end
	Value   string // of the lock
	Place   int    // in line, 1 is the first; 0 outside; with shares an estimate
	Time    int64  // of the server, in µs
	Last    int64  // the last token issued
	Foreign bool   // the last tenure has ended, so the holder does not use holdfast and will notify nobody
	Deaf    Deaf
	Holders int // how many hold it together; 0 if one holds it alone
}

// NoLimit is the limit of an owner that lets any number hold the lock with it, if they name no limit either. It is in
// held.lua, too.
const NoLimit = 1 << 20

// Admits returns what [Names] have for a limit, or for a re-entry id: the limit 1 and a tag, which has no spaces.
func Admits(limit int, id string) string {
	switch {
	case id != "":
		return "1=" + url.QueryEscape(id)
	case limit > 1:
		return strconv.Itoa(limit)
	}
	return ""
}

// severalHold begins the value of a lock that several can hold together: see held.lua.
const severalHold = "="

// Deaf is the reason why a waiter will not be notified of a grant.
type Deaf int64

const (
	Hears         Deaf = 0
	DeafElsewhere Deaf = 1 // the server knows no subscriber of the inbox
	DeafMute      Deaf = 2 // the server lets no script publish
)

// ReadAcquired reads a reply of acquire.lua.
func ReadAcquired(val any) (a Acquired, ok bool) {
	switch r := val.(type) {
	case int64:
		switch {
		case r > 0:
			return Acquired{Token: r}, true
		case r == -1:
			return Acquired{Undone: true}, true
		case r == -2:
			return Acquired{Exhausted: true}, true
		}
	case []any:
		f := fields{list: r}
		held := f.number() == 0
		a = Acquired{Held: true, Left: f.number(), Value: f.text(), Place: int(f.number()), Time: f.number()}
		last, rest, _ := strings.Cut(f.text(), " ")
		a.Last, _ = strconv.ParseInt(last, 10, 64)
		a.Foreign = strings.HasPrefix(rest, "0 ") && !strings.HasPrefix(a.Value, severalHold)
		a.Deaf = Deaf(f.number())
		if len(f.list) > 0 {
			a.Holders = int(f.number())
		}
		return a, held && f.complete()
	}
	return a, false
}
