package core

import (
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// node is one Redis as a Locker knows it, which has all of its locks, or one of several masters.
type node struct {
	*redisconn.Conn
	clock  *timing.Clock
	gate   *timing.Gate
	timers *timing.Timers
	inbox  *inbox
	votes  bool   // one of several masters
	name   string // its address, then

	plansMu sync.RWMutex
	plans   map[planFor]*string
}

func (n *node) open() <-chan struct{} { return n.inbox.open() }

func (n *node) covers(time.Duration) error { return nil }

func (n *node) isUp() bool { return n.inbox.isUp() }

func (n *node) shut() { n.inbox.close() }

func (n *node) patience(ttl time.Duration) time.Duration { return timing.Patience(ttl) }

func (n *node) allowance(ttl time.Duration) time.Duration { return timing.Patience(ttl) }

// same tells whether o uses the same client, as far as can be seen.
func (n *node) same(o servers) bool {
	other, ok := o.(*node)
	return ok && reflect.TypeOf(n.Client).Comparable() && n.Client == other.Client
}

func (n *node) renew(holds []*hold, leases []time.Duration, done func(h *hold, val any, err error)) {
	calls := make([]*redisconn.Call, len(holds))
	for i, h := range holds {
		calls[i] = h.tenure.(*tenure).renewal(leases[i])
	}
	n.RunAll(calls, func(i int, val any, err error) { done(holds[i], val, err) })
}

// permanent tells whether asking again can only fail again.
func permanent(err error) bool {
	if several := (*quorumError)(nil); errors.As(err, &several) {
		return several.permanent()
	}
	return errors.Is(err, ErrInvalid) || errors.Is(err, errExhausted) || redisconn.Permanent(err)
}
