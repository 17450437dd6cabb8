package holdfast

import "github.com/holdfast-go/holdfast/core/internal/single"

const (
	maxShare  = 128
	maxWeight = 100
)

// WithShare makes calls that wait for a lock take turns by name: while calls of several names wait, each name gets an
// equal part of the grants, however many calls it has and however many give up. A name that waits alone gets
// everything. Within a name, calls are first come, first served, and so are all calls without one, which count as one
// more name. A call that is alone in its name waits for about one other grant, and for the rest of a hold. It helps
// most with [WithLimit]: at most n at a time, in fair parts.
//
// Within a process, calls of a name hand the lock over for at most 5 ms, which counts as one grant, and calls without a
// name for as long as [WithLocalHandover] says. So name all calls for a key, or none.
//
// The name has 1 to 128 bytes; names are forgotten when nobody waits. Take it from the authenticated tenant: a client that
// can invent names gets a part for each. Readers that share an acquisition, see [WithShared], share its name too.
// On several masters WithShare is an [ErrInvalid].
func WithShare(name string) CallOption {
	return callOption(func(c *config) error {
		if name == "" || len(name) > maxShare {
			return invalid("WithShare(%.80q): want 1 to %d bytes", name, maxShare)
		}
		c.newShare().Name = name
		return nil
	})
}

// WithShareWeight gives the name of [WithShare] w parts of the grants, 1 to 100. Default: 1. Calls of one name should
// agree on it: each grant counts with the weight of its own call.
func WithShareWeight(w int) CallOption {
	return callOption(func(c *config) error {
		if w < 1 || w > maxWeight {
			return invalid("WithShareWeight(%d): want 1 to %d", w, maxWeight)
		}
		c.newShare().Weight = w
		return nil
	})
}

// shareName returns the name of c; "" for none.
func (c *config) shareName() string {
	if c.share == nil {
		return ""
	}
	return c.share.Name
}

// newShare gives c a share of its own to change: the one that it has may be that of other configurations.
func (c *config) newShare() *single.Share {
	s := new(single.Share)
	if c.share != nil {
		*s = *c.share
	}
	c.share = s
	return s
}
