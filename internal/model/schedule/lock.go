package schedule

import (
	"math"
	"slices"
)

// Holder is one inside.
type Holder struct {
	Owner string
	Limit int
	Ends  int64 // of its lease
}

// Lock is a lock with its line, as in Redis.
type Lock struct {
	Line
	Now    int64           // Redis' clock, in µs
	Lease  int64           // of all that are let in
	Deaf   map[string]bool // owners that cannot be told
	Inside []Holder

	grants []*Waiter          // those that were let in by the call
	watch  func(next *Waiter) // is told of each from the line, before it is let in
}

// fits tells whether one with that limit may enter: it and all inside are no more than the least of their limits.
func (k *Lock) fits(limit int) bool {
	least := limit
	for _, h := range k.Inside {
		if k.has(LeastLimitCounts) {
			least = min(least, h.Limit)
		}
	}
	return len(k.Inside) < least
}

func (k *Lock) expire() {
	k.Inside = slices.DeleteFunc(k.Inside, func(h Holder) bool { return h.Ends <= k.Now })
}

func (k *Lock) enter(w *Waiter) {
	k.Inside = append(k.Inside, Holder{w.Owner, w.Limit, k.Now + k.Lease})
	k.grants = append(k.grants, w)
}

// heard tells whether a waiter can be told, where self is asking.
func (k *Lock) heard(self string) func(*Waiter) bool {
	return func(w *Waiter) bool { return w.Owner == self || !k.Deaf[w.Owner] }
}

// serve lets in all that may enter.
func (k *Lock) serve(self string) []*Waiter {
	heard, fits := k.heard(self), func(w *Waiter) bool {
		fits := k.fits(w.Limit)
		if fits && k.watch != nil {
			k.watch(w)
		}
		return fits
	}
	for k.fits(math.MaxInt) { // or nobody looks at who waits
		w := k.Admit(k.Now, heard, fits)
		if w == nil {
			break
		}
		k.enter(w)
	}
	g := k.grants
	k.grants = nil
	return g
}

// Acquire is a call of w, its first or another look, and returns the waiters that are let in. Where nobody waits it does
// not join the line, and its share is charged nothing.
func (k *Lock) Acquire(w Waiter) []*Waiter {
	k.expire()
	for _, h := range k.Inside {
		if h.Owner == w.Owner {
			return nil
		}
	}
	if len(k.Shares) == 0 && k.fits(w.Limit) {
		k.enter(&w)
		return k.serve("")
	}
	if !k.has(JoinerMayBeNext) {
		g := k.serve(w.Owner)
		k.Join(k.Now, w)
		return g
	}
	k.Join(k.Now, w)
	return k.serve(w.Owner)
}

// Forget ends the hold or the wait of owner, and returns the waiters that are let in.
func (k *Lock) Forget(owner string) []*Waiter {
	k.expire()
	k.Inside = slices.DeleteFunc(k.Inside, func(h Holder) bool { return h.Owner == owner })
	k.Leave(owner)
	return k.serve("")
}
