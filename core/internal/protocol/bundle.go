package protocol

import _ "embed"

var (
	//go:embed bundle.lua
	bundleLua string

	// BundleScript is called with any number of keys.
	BundleScript = newScript(0, freeLua+takeLua+bundleLua)
)

// A Kind is the part that a call can have in a bundle.
type Kind int

const (
	Apart   Kind = iota // it goes separately
	Forgets             // a Forget that leaves no tombstone
	Takes               // an Acquire of an owner that lets nobody in
)

// KindOf returns how the call of s with args can travel.
func KindOf(s *Script, args []any) Kind {
	switch {
	case tracing: // an event tells of one call
	case s == ForgetScript && args[len(args)-1] == noTombstone:
		return Forgets
	case s == AcquireScript:
		return Takes
	}
	return Apart
}

// Bundle returns one call for several, which are given by their arguments.
func Bundle(forgets, takes [][]any) (*Script, []any) {
	args := append(make([]any, 0, 4+4*len(forgets)+5*len(takes)), "evalsha", BundleScript.sha, 2*len(forgets)+3*len(takes))
	const key, owner = 3, 8 // where these are in a call
	for _, f := range forgets {
		args = append(args, f[key:key+2]...)
	}
	for _, t := range takes {
		args = append(args, t[key+1:key+3]...)
	}
	for _, t := range takes {
		args = append(args, t[key])
	}
	args = append(args, len(forgets))
	for _, f := range forgets {
		args = append(args, f[owner:owner+2]...)
	}
	for _, t := range takes {
		args = append(args, t[owner:owner+2]...)
	}
	return BundleScript, args
}

// ReadBundle reads the reply to a bundle of n calls. It returns the reply to each call, or nil for a call that has to
// go separately.
func ReadBundle(val any, n int) ([]any, bool) {
	replies, ok := val.([]any)
	if !ok || len(replies) != n {
		return nil, false
	}
	for i := range replies {
		r, known := replies[i].(int64)
		if ok = ok && known && r >= 0; r == 0 {
			replies[i] = nil
		}
	}
	return replies, ok
}
