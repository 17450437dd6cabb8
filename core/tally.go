package core

import (
	"math"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// tally counts the answers to a renewal, and tells once what they come to: the lease that most masters have at least;
// 0 as soon as most cannot have it; a failure as soon as neither can come about any more.
type tally struct {
	tell func(val any, err error)

	mu     sync.Mutex // guards what follows
	all    int
	need   int
	left   int     // to come
	ours   []int64 // how long each lease is
	others int
	err    error
	told   bool
}

func newTally(all, need int, tell func(any, error)) *tally {
	return &tally{left: all, all: all, need: need, tell: tell}
}

func (s *tally) add(val any, err error) {
	if val, err, decided := s.count(val, err); decided {
		s.tell(val, err)
	}
}

func (s *tally) count(val any, err error) (any, error, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	lease, ok := protocol.ReadLeft(val)
	switch {
	case err != nil:
		s.err = err
	case !ok:
		s.err = errReply
	case lease == 0:
		s.others++
	case lease < 0: // somebody made the key persistent on this one
		s.ours = append(s.ours, math.MaxInt64)
	default:
		s.ours = append(s.ours, lease)
	}
	if s.told {
		return nil, nil, false
	}
	s.told = true
	switch {
	case len(s.ours) >= s.need:
		slices.Sort(s.ours)
		if lease = s.ours[len(s.ours)-s.need]; lease == math.MaxInt64 {
			lease = -1
		}
		return lease, nil, true
	case s.others > s.all-s.need:
		return int64(0), nil, true
	case len(s.ours)+s.left < s.need && s.others+s.left <= s.all-s.need:
		return nil, s.err, true
	}
	s.told = false
	return nil, nil, false
}
