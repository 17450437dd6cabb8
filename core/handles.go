package holdfast

import (
	"context"
	"weak"
)

// handles are the Locks that share a hold, see [WithReentrancy], and their contexts. The hold's mutex guards them.
type handles struct {
	lock     *Lock              // the first one, until the first renewal
	handle   weak.Pointer[Lock] // from then on
	contexts []bound
	open     int32 // how many are not released yet
	nested   int32 // how many were made besides the first
}

// bound is what a hold knows of a context of its lock, so that a forgotten Lock can be collected: not more than how to end
// it.
type bound struct {
	handle int // the number of its Lock
	inner  context.Context
	cancel context.CancelCauseFunc
}

// first makes the handle that h begins with.
func (hs *handles) first(h *hold) *Lock {
	hs.lock, hs.open = &Lock{hold: h}, 1
	return hs.lock
}
