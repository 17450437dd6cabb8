package protocol

import _ "embed"

var (
	//go:embed forget.lua
	forgetLua string
	//go:embed nudge.lua
	nudgeLua string
	//go:embed free.lua
	freeLua string
	//go:embed fastforget.lua
	fastForgetLua string

	ForgetScript = newScript(5, traced("forget", freeLua+fastForgetLua+behindLua+forgetLua))
	ReturnScript = newScript(6, traced("forget", behindLua+forgetLua))
	YieldScript  = newScript(5, freeLua+fastForgetLua+fenceLua+lineLua+nudgeLua+forgetLua)
)

// Forget returns a call of forget.lua. token is 0 if it was never learned. With tainted an acquire may still be under
// way, and forget.lua leaves a tombstone.
func Forget(buf []any, n *Names, owner *string, token *int64, tainted bool) (*Script, []any) {
	life := noTombstone
	if tainted {
		life = tombstoneLife
	}
	if n.Admits != "" {
		return ReturnScript.args(buf, &n.Lock, &n.Fence, &n.Gone, &n.Line, &n.Waits, &n.Held, owner, token, fenceLife, life)
	}
	return ForgetScript.args(buf, &n.Lock, &n.Fence, &n.Gone, &n.Line, &n.Waits, owner, token, fenceLife, life)
}

// Yield is Forget on one of several masters. It also takes waiter out of the line. If waiter is "-", it notifies nobody
// that the lock is free.
func Yield(buf []any, n *Names, owner *string, token *int64, tainted bool, waiter string) (*Script, []any) {
	life := noTombstone
	if tainted {
		life = tombstoneLife
	}
	return YieldScript.args(buf, &n.Lock, &n.Fence, &n.Gone, &n.Line, &n.Waits, owner, token, fenceLife, life, waiter)
}

// Resign returns a call that takes a waiter out of the line of one of several masters.
func Resign(n *Names, waiter string) (*Script, []any) {
	return YieldScript.args(nil, n.Lock, n.Fence, n.Tombstone(waiter), n.Line, n.Waits, waiter, 0, fenceLife, noTombstone, "")
}

// Forgotten is a reply of forget.lua.
type Forgotten int64

const (
	NotHeld  Forgotten = 0 // the tenure ended without a release, or never began
	Released Forgotten = 1 // by this call
	Already  Forgotten = 2 // by an earlier one
	Unknown  Forgotten = 3 // it is not held, and nothing is recorded of it
)

// ReadForgotten reads a reply of forget.lua.
func ReadForgotten(val any) (Forgotten, bool) {
	n, ok := val.(int64)
	return Forgotten(n), ok && n >= 0 && n <= 3
}
