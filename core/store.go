package holdfast

import (
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/redis/go-redis/v9"
)

// stake is an owner, and what the calls of this process that use that owner one after the other have to know.
type stake struct {
	store.Owner
	key string // prefix included
	cfg *config

	token  int64         // the first one; 0 until granted
	began  time.Duration // when it was granted, or earlier
	passed time.Duration // when it was last handed over
	spare  *spares       // or nil
	block  int16         // how many tokens it reserves, beginning with token
	handed int16         // how often it was handed over

	usedHold, usedRow bool // whether those of spare are in use
}

// spares have what most stakes need one of, so that neither costs an allocation. They are made together with the stake and
// its owner. With the allocator's header they fit into 768 bytes.
type spares struct {
	hold
	row
}

type chunk struct {
	stake
	single.Owner
	spares
}

// newHold returns a hold, the one in spare if that is free.
func (s *stake) newHold() *hold {
	if s.spare == nil || s.usedHold {
		return new(hold)
	}
	s.usedHold = true
	return &s.spare.hold
}

// newRow returns a row, the one in spare if that is free.
func (s *stake) newRow() *row {
	if s.spare == nil || s.usedRow {
		return new(row)
	}
	s.usedRow = true
	return &s.spare.row
}

// holds notes a hold of s.
func (s *stake) holds(h *hold) {
	if r, ok := s.Owner.(*reader); ok {
		r.holds(h)
	}
}

// endOthers ends the holds that share s, if one of them has lost it for all.
func (s *stake) endOthers() {
	if r, ok := s.Owner.(*reader); ok {
		r.endOthers()
	}
}

// granted sets the token of a grant that was just received. It may differ from the known token: the lease of an earlier
// grant may have ended while nobody could listen.
func (s *stake) granted(token int64) {
	if token != s.token {
		s.token, s.handed = token, 0
	}
}

func (s *stake) undo() { s.Undo(s.passed) }

// ownOne returns the stake of a new owner on one Redis.
func (l *Locker) ownOne(key protocol.Key, want single.Want) *stake {
	all := new(chunk)
	all.Owner.Init(l.one, key.Owned(l.one.Seal, want.Label), want)
	all.stake = stake{Owner: &all.Owner, spare: &all.spares}
	return &all.stake
}

// same reports whether l and o have their locks in the same places, as far as that can be seen.
func (l *Locker) same(o *Locker) bool {
	ours, others := l.store.Clients(), o.store.Clients()
	return len(ours) == len(others) && !slices.ContainsFunc(ours, func(c redis.UniversalClient) bool {
		return !reflect.TypeOf(c).Comparable() || !slices.Contains(others, c)
	})
}
