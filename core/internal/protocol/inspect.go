package protocol

import _ "embed"

var (
	//go:embed inspect.lua
	inspectLua string

	InspectScript = newScript(3, fenceLua+inspectLua)
)

// Inspect is a call of inspect.lua.
func Inspect(room []any, n *Names) (*Script, []any) {
	return InspectScript.args(room, n.Lock, n.Fence, n.Line)
}

// Inspected is a reply of inspect.lua.
type Inspected struct {
	Value   string // of the lock
	Left    int64  // of the lease, in ms; NoExpiry or Free
	Token   int64
	Waiting int64
}

// What Inspected.Left is without a lease.
const (
	NoExpiry = -1
	Free     = -2
)

// ReadInspected reads a reply of inspect.lua, or what several masters came to, which is an Inspected already.
func ReadInspected(val any) (i Inspected, ok bool) {
	if i, ok = val.(Inspected); ok {
		return i, true
	}
	r, _ := val.([]any)
	if len(r) != 4 {
		return i, false
	}
	var ok1, ok2, ok3, ok4 bool
	i.Value, ok1 = r[0].(string)
	i.Left, ok2 = r[1].(int64)
	i.Token, ok3 = r[2].(int64)
	i.Waiting, ok4 = r[3].(int64)
	return i, ok1 && ok2 && ok3 && ok4
}
