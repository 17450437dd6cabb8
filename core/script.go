package core

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed fence.lua
	fenceLua string
	//go:embed line.lua
	lineLua string
	//go:embed grant.lua
	grantLua string
	//go:embed nudge.lua
	nudgeLua string
	//go:embed started.lua
	startedLua string
	//go:embed vote.lua
	voteLua string
	//go:embed tick.lua
	tickLua string
	//go:embed withdraw.lua
	withdrawLua string
	//go:embed sustain.lua
	sustainLua string
	//go:embed entry.lua
	entryLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed forget.lua
	forgetLua string
	//go:embed renew.lua
	renewLua string
	//go:embed inspect.lua
	inspectLua string
	//go:embed claim.lua
	claimLua string

	acquireScript = newScript(5, fenceLua+lineLua+grantLua+acquireLua)
	forgetScript  = newScript(5, fenceLua+lineLua+grantLua+forgetLua)
	renewScript   = newScript(1, renewLua)
	inspectScript = newScript(3, fenceLua+inspectLua)
	claimScript   = newScript(1, claimLua)

	// On each of several masters.
	voteScript     = newScript(5, fenceLua+lineLua+nudgeLua+startedLua+voteLua)
	sustainScript  = newScript(3, fenceLua+sustainLua)
	tickScript     = newScript(2, startedLua+tickLua)
	withdrawScript = newScript(2, withdrawLua)
	yieldScript    = newScript(5, fenceLua+lineLua+nudgeLua+forgetLua)

	// With a re-entry id.
	reenterScript = newScript(6, fenceLua+lineLua+grantLua+entryLua+acquireLua)
	departScript  = newScript(6, fenceLua+lineLua+grantLua+entryLua+forgetLua)
	prolongScript = newScript(2, entryLua+renewLua)
)

// Replies of acquire.lua other than a token: the first element of its refusal, and a failure. The third, -1 for
// a tenure that was undone, only ever answers an acquire that nobody waits for.
const (
	acquireHeld      = 0
	acquireExhausted = -2
)

// Replies of forget.lua.
const (
	forgetLost     = 0
	forgetReleased = 1
	forgetAlready  = 2
	forgetUnknown  = 3
)

// Replies of vote.lua, the first element.
const (
	voteGranted   = 1
	voteHeld      = 0
	voteGone      = -1
	voteExhausted = -2
	voteLow       = -3
	voteHigh      = -4
	voteYoung     = -5
)

// script is a Lua script and the arguments that every call of it begins with, boxed once.
type script struct {
	keys int
	sha  any // hex SHA-1 of the text, a string
	text any // a string
}

func newScript(keys int, text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{keys: keys, sha: hex.EncodeToString(sum[:]), text: text}
}

// args appends a whole EVALSHA command of the keys and then the arguments to all.
func (s *script) args(all []any, args ...any) []any {
	return append(append(all, "evalsha", s.sha, s.keys), args...)
}

// full turns an EVALSHA command into the EVAL that also teaches the server the script.
func (s *script) full(args []any) []any {
	return append([]any{"eval", s.text, s.keys}, args[3:]...)
}
