package protocol

import (
	_ "embed"
	"strconv"
	"time"
)

var (
	//go:embed renew.lua
	renewLua string
	//go:embed sustain.lua
	sustainLua string

	RenewScript   = newScript(1, traced("renew", renewLua))
	KeepScript    = newScript(3, traced("renew", fenceLua+heldLua+renewLua))
	SustainScript = newScript(3, fenceLua+sustainLua)
)

// Renew returns a call of renew.lua. It lengthens the lease to that many ms if it is shorter. 0 asks what is left.
func Renew(buf []any, n *Names, owner *string, lease *int64) (*Script, []any) {
	if n.Admits != "" {
		return KeepScript.args(buf, &n.Lock, &n.Fence, &n.Held, owner, lease)
	}
	return RenewScript.args(buf, &n.Lock, owner, lease)
}

// Sustain returns a call of sustain.lua, which renews on one of several masters and brings the lock back if the master
// has forgotten it. fence is that of the lock, gone the tombstone of the attempt.
func Sustain(buf []any, key, fence, gone, owner *string, lease time.Duration, token int64, block int) (*Script, []any) {
	ms := lease.Milliseconds()
	var digits [96]byte
	plan := strconv.AppendInt(digits[:0], ms, 10)
	for _, n := range [...]int64{token, int64(block), ms + FenceLife.Milliseconds()} {
		plan = strconv.AppendInt(append(plan, ' '), n, 10)
	}
	return SustainScript.args(buf, key, fence, gone, owner, string(plan))
}

// ReadLeft reads a reply of renew.lua or sustain.lua: what is left of the lease in ms, 0 if the lock is no longer the
// caller's, or less than 0 if the key never expires.
func ReadLeft(val any) (ms int64, ok bool) {
	ms, ok = val.(int64)
	return ms, ok
}
