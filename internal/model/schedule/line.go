package schedule

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

const (
	Unit      = 5040 // what a waiter of weight 1 costs its share: divisible by 1 to 10
	MaxWeight = 100
	MaxTag    = 1 << 51
)

// Waiter is one in line. Moments are by Redis' clock, in µs.
type Waiter struct {
	Owner  string
	Share  string // its name; empty for none, which counts as a share where there are others
	Weight int64  // 1 to MaxWeight; 1 without a share
	Limit  int    // how many may be inside while it is
	Expiry int64  // from when on it counts as dead
	At     int64  // when it came: greater than that of the one before it in its share; set by Join

	tag int64 // without ShareHasTheTag
}

// Share is one that waits.
type Share struct {
	Name    string
	Tag     int64 // 0 in a line that is not marked
	Head    int64 // when its first waiter came, as of when the tag was set: of equal tags the least is next
	Waiters []*Waiter
}

// Line is a waiting line. Its zero value is an empty one.
type Line struct {
	Without Rule
	Marked  bool             // there are shares, and so tags and V
	V       float64          // virtual time
	Finish  map[string]int64 // the next tags of shares that wait no more, where above V
	Shares  []*Share         // that wait, in no order
}

// Step is by how much the tag of a share rises when one with that weight is let in.
func Step(weight int64) int64 { return Unit / weight }

func (l *Line) has(r Rule) bool { return l.Without&r == 0 }

// Find is a waiter and its share, or nil.
func (l *Line) Find(owner string) (*Share, *Waiter) {
	for _, s := range l.Shares {
		for _, w := range s.Waiters {
			if w.Owner == owner {
				return s, w
			}
		}
	}
	return nil, nil
}

func (l *Line) share(name string) *Share {
	for _, s := range l.Shares {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Join puts w at the end of its share. One that is in line keeps its place; the rest of it is as w says.
func (l *Line) Join(now int64, w Waiter) {
	s := l.share(w.Share)
	if s != nil {
		i := slices.IndexFunc(s.Waiters, func(o *Waiter) bool { return o.Owner == w.Owner })
		if i >= 0 && l.has(ResendKeepsPlace) {
			w.At, w.tag = s.Waiters[i].At, s.Waiters[i].tag
			*s.Waiters[i] = w
			return
		}
		if i >= 0 {
			l.remove(s, s.Waiters[i])
			s = l.share(w.Share)
		}
	}
	w.At = now
	if s != nil && l.has(ArrivalsAscend) {
		w.At = max(now, s.Waiters[len(s.Waiters)-1].At+1)
	}
	if w.Share != "" && !l.Marked {
		l.Marked = true
		if crowd := l.share(""); crowd != nil {
			// One without a share has just been let in, or got the lock. So the first of the shares is next, also among a crowd.
			crowd.Head = crowd.Waiters[0].At
			if l.has(CrowdStartsLater) {
				crowd.Tag = Unit
			}
		}
	}
	if s == nil {
		s = &Share{Name: w.Share}
		l.Shares = append(l.Shares, s)
		if l.Marked {
			s.Tag, s.Head = l.Finish[w.Share], w.At
			if l.has(NewcomerStartsAtV) {
				s.Tag = max(s.Tag, int64(l.V))
			}
			if l.has(ShareHasTheTag) {
				delete(l.Finish, w.Share)
			}
		}
	}
	if !l.has(ShareHasTheTag) {
		w.tag = max(int64(l.V), l.Finish[w.Share])
		l.remember(w.Share, w.tag+Step(w.Weight))
	}
	joins := w // w itself stays off the heap where it only looks
	s.Waiters = append(s.Waiters, &joins)
	if !l.has(ArrivalsAscend) {
		slices.SortStableFunc(s.Waiters, func(a, b *Waiter) int { return cmp.Compare(a.At, b.At) })
	}
}

func (l *Line) remember(name string, tag int64) {
	if l.Finish == nil {
		l.Finish = map[string]int64{}
	}
	l.Finish[name] = tag
}

// Leave takes a waiter out of the line that was not let in, and tells whether it was there.
func (l *Line) Leave(owner string) bool {
	s, w := l.Find(owner)
	if w != nil {
		l.leave(s, w)
	}
	return w != nil
}

func (l *Line) leave(s *Share, w *Waiter) {
	if l.Marked && !l.has(LeaversPayNothing) {
		s.Tag += Step(w.Weight)
	}
	l.remove(s, w)
	l.settle()
}

// Order is the line from the next to the last.
func (l *Line) Order() iter.Seq2[*Share, *Waiter] {
	if !l.has(SharesTakeTurns | ShareHasTheTag) {
		return l.orderOfWaiters
	}
	slices.SortFunc(l.Shares, func(a, b *Share) int {
		switch {
		case a.Tag != b.Tag:
			return cmp.Compare(a.Tag, b.Tag)
		case a.Head != b.Head:
			return cmp.Compare(a.Head, b.Head)
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return func(yield func(*Share, *Waiter) bool) {
		for _, s := range l.Shares {
			for _, w := range s.Waiters {
				if !yield(s, w) {
					return
				}
			}
		}
	}
}

func (l *Line) orderOfWaiters(yield func(*Share, *Waiter) bool) {
	type place struct {
		*Share
		*Waiter
	}
	var all []place
	for _, s := range l.Shares {
		for _, w := range s.Waiters {
			all = append(all, place{s, w})
		}
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.At, b.At)) })
	for _, p := range all {
		if !yield(p.Share, p.Waiter) {
			return
		}
	}
}

// Next is the next to be let in by Admit: the first that is alive and that can be told.
func (l *Line) Next(now int64, heard func(*Waiter) bool) *Waiter {
	for _, w := range l.Order() {
		if now < w.Expiry && heard(w) {
			return w
		}
	}
	return nil
}

// Admit lets in one, and charges its share. The dead that it finds first leave the line, and those that cannot be told are
// passed over. It returns nil if nobody is left or the first of them does not fit.
func (l *Line) Admit(now int64, heard, fits func(*Waiter) bool) *Waiter {
	for l.bury(now, heard) {
	}
	for s, w := range l.Order() {
		switch {
		case !heard(w) && l.has(UnheardArePassed), now >= w.Expiry && l.has(DeadAreRemoved): // behind one that does not fit
		case !heard(w):
			return nil
		case fits(w):
			l.serve(s, w)
			return w
		case l.has(UnfitHoldUpAll):
			return nil
		}
	}
	return nil
}

// bury takes out one that is dead and comes before the next to be let in.
func (l *Line) bury(now int64, heard func(*Waiter) bool) bool {
	for s, w := range l.Order() {
		if now >= w.Expiry && l.has(DeadAreRemoved) {
			l.leave(s, w)
			return true
		}
		if heard(w) {
			break
		}
	}
	return false
}

// serve takes out one that was let in. The shares are in order.
func (l *Line) serve(s *Share, w *Waiter) {
	if l.Marked {
		step, n := Step(w.Weight), float64(len(l.Shares))
		start := s.Tag
		if !l.has(ShareHasTheTag) {
			start = w.tag
		}
		l.V = min(max(l.V+l.rise(w.Weight, n), float64(start)), MaxTag)
		s.Tag = min(s.Tag+step, MaxTag)
		for _, o := range l.Shares {
			if o == s || !l.has(PassedOverMoveUp) || !l.has(SharesTakeTurns|ShareHasTheTag) {
				break
			}
			o.Tag = max(o.Tag, int64(l.V))
		}
	}
	l.remove(s, w)
	if len(s.Waiters) > 0 && l.Marked {
		s.Head = s.Waiters[0].At
	}
	if l.has(FinishIsForgotten) && l.has(ShareHasTheTag) {
		for name, tag := range l.Finish {
			if float64(tag) <= l.V {
				delete(l.Finish, name)
			}
		}
	}
	l.settle()
}

// rise is by how much V rises when one of n shares is served.
func (l *Line) rise(weight int64, n float64) float64 {
	step := float64(Step(weight))
	switch {
	case !l.has(ClockRuns | ShareHasTheTag):
		return 0
	case !l.has(ClockKnowsWeights):
		step = Unit
	}
	if !l.has(ClockKeepsFraction) {
		if l.has(ClockKnowsWeights) {
			step = Unit / float64(weight)
		}
		return math.Floor(l.V+step/(n+1)) - l.V
	}
	return step / (n + 1)
}

func (l *Line) remove(s *Share, w *Waiter) {
	s.Waiters = slices.DeleteFunc(s.Waiters, func(o *Waiter) bool { return o == w })
	if len(s.Waiters) > 0 {
		return
	}
	l.Shares = slices.DeleteFunc(l.Shares, func(o *Share) bool { return o == s })
	if l.Marked && float64(s.Tag) > l.V && l.has(FinishIsRemembered) && l.has(ShareHasTheTag) {
		l.remember(s.Name, s.Tag)
	}
}

// settle forgets what no longer matters.
func (l *Line) settle() {
	switch {
	case len(l.Shares) == 0:
		if l.has(EmptyForgetsAll) {
			*l = Line{Without: l.Without}
		}
	case l.Marked && len(l.Shares) == 1 && l.Shares[0].Name == "" && len(l.Finish) == 0:
		// The next share to join finds the crowd a Unit above V. So it must be there now, or a crowd that shares have passed
		// begins anew each time, and is passed for ever.
		if crowd := l.Shares[0]; float64(crowd.Tag) == l.V+Unit || !l.has(PlainKeepsClaims) {
			l.Marked, l.V, crowd.Tag, crowd.Head = false, 0, 0, 0
		}
	}
}
