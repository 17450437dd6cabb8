package protocol

import _ "embed"

var (
	//go:embed inspect.lua
	inspectLua string

	//go:embed ping.lua
	pingLua string

	InspectScript = newScript(4, fenceLua+inspectLua)
	PingScript    = newScript(4, pingLua+fenceLua+inspectLua)
)

// A Question returns a call about a lock, whose reply ReadInspected reads: [Inspect] or [Ping].
type Question func(buf []any, n *Names) (*Script, []any)

// Inspect returns a call of inspect.lua.
func Inspect(buf []any, n *Names) (*Script, []any) {
	return InspectScript.args(buf, n.Lock, n.Fence, n.Line, n.Held)
}

// Ping returns a call of ping.lua.
func Ping(buf []any, n *Names) (*Script, []any) {
	return PingScript.args(buf, n.Lock, n.Fence, n.Line, n.Held)
}

// Inspected is a reply of inspect.lua.
type Inspected struct {
	Value   string // of the lock
	Left    int64  // what is left of the lease, in ms; or NoExpiry or Free
	Token   int64
	Waiting int64
	Shares  int64 // how many shares those have
	Holders int64 // how many hold it together; 0 if one holds it alone
	Limit   int64 // the least of their limits
}

// What Inspected.Left is if no lease runs.
const (
	NoExpiry = -1
	Free     = -2
)

// ReadInspected reads a reply of inspect.lua. The result of several masters is an Inspected already, which it returns
// as it is.
func ReadInspected(val any) (i Inspected, ok bool) {
	if i, ok = val.(Inspected); ok {
		return i, true
	}
	f := fieldsOf(val)
	i = Inspected{Value: f.text(), Left: f.number(), Token: f.number(), Waiting: f.number(), Shares: f.number()}
	if len(f.list) > 0 {
		i.Holders, i.Limit = f.number(), f.number()
	}
	return i, f.complete()
}
