package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/quorum"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// store is where a Locker's locks are: one Redis, or several masters.
type store interface {
	own(key protocol.Key, want single.Want) *stake
	same(o store) bool
	check(c *config) error            // what options make no sense here
	covers(lease time.Duration) error // where it is too long

	Several() bool                             // whether a majority decides
	Many() bool                                // whether one of several servers may hang while the others serve
	Open() <-chan struct{}                     // opens the inbox of waiters, and returns a channel that is closed when it is opened anew
	Up() bool                                  // whether they can be told
	Close()                                    // no one will wait any more
	Patience(ttl time.Duration) time.Duration  // for how long one answer is waited for
	Allowance(ttl time.Duration) time.Duration // and all that one call may need
	Claim(names protocol.Names, tick int64, ttl time.Duration, w protocol.Window) func(context.Context) *redisconn.Call
	Inspect(ctx context.Context, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call
}

// owner has, or may come to have, a lock, and is used once: a *single.Owner or a *quorum.Owner.
type owner interface {
	Try(ctx context.Context, c *redisconn.Call, waits bool, limit time.Duration) (told bool)
	Read(c *redisconn.Call) single.Verdict
	Leave(c *redisconn.Call)
	Wake() <-chan protocol.Grant
	Accept(g protocol.Grant, now timing.Instant) (token int64, at timing.Instant, d time.Duration)
	Onward() bool
	Renew(ctx context.Context, d time.Duration, batch redisconn.Batch) *redisconn.Call
	Release(ctx context.Context, limit time.Duration) (single.Outcome, error)
	Pass(limit time.Duration, told func(single.Outcome, error))
	Undo(since time.Duration)
	End(left time.Duration)
}

// stake is an owner, and what the calls of this process that go on with it one after the other have to know.
type stake struct {
	owner
	key string // prefix included
	cfg *config

	token   int64         // the first; 0 until granted
	began   time.Duration // when it was granted, or before
	passed  time.Duration // when it was handed over last
	sharing *sharing      // of readers
	room    *room         // or nil
	block   int16         // how many tokens it reserves, from the first on
	handed  int16         // how often it was handed over

	usedHold, usedQueue bool // of room
}

// room is for what most stakes need one of, so that it takes no allocation each. It is made together with the
// stake and its owner, which fill 704 bytes of the allocator with its header: with one more word they take 768.
type room struct {
	hold
	queue
}

type whole struct {
	stake
	single.Owner
	room
}

// newHold returns room for a hold.
func (s *stake) newHold() *hold {
	if s.room == nil || s.usedHold {
		return new(hold)
	}
	s.usedHold = true
	return &s.room.hold
}

// newQueue returns room for a queue.
func (s *stake) newQueue() *queue {
	if s.room == nil || s.usedQueue {
		return new(queue)
	}
	s.usedQueue = true
	return &s.room.queue
}

// granted takes the token of a grant that was just heard of: the lease of an earlier one, with another token, may have
// ended while nobody could listen.
func (s *stake) granted(token int64) {
	if token != s.token {
		s.token, s.handed = token, 0
	}
}

func (s *stake) undo() { s.Undo(s.passed) }

// one is a store of one Redis.
type one struct{ *single.Redis }

func (s one) own(key protocol.Key, want single.Want) *stake {
	all := new(whole)
	all.Owner.Init(s.Redis, key.Owned(want.Label), want)
	all.stake = stake{owner: &all.Owner, room: &all.room}
	return &all.stake
}

func (s one) same(o store) bool {
	other, ok := o.(one)
	return ok && s.Same(other.Redis)
}

// check looks at WithReplicaAcks together with the TTL and the client.
func (s one) check(c *config) error {
	if c.quarantineSet || c.nodeTimeout > 0 {
		return invalid("WithQuarantine and WithNodeTimeout are for NewRedLock")
	}
	if c.acks == 0 {
		return nil
	}
	if held := c.ttl - timing.Margin(c.ttl); c.acksWithin >= held {
		return invalid("WithReplicaAcks may wait for %v, but with a TTL of %v the lock is lost after %v", c.acksWithin, c.ttl, held)
	}
	switch s.Client.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		return nil
	}
	return invalid("WithReplicaAcks needs a *redis.Client, *redis.ClusterClient or *redis.Ring, not a %T", s.Client)
}

func (s one) covers(time.Duration) error { return nil }

// masters are a store of several.
type masters struct{ *quorum.Masters }

func (s masters) own(key protocol.Key, want single.Want) *stake {
	return &stake{owner: s.Own(key.Names(), want)}
}

func (s masters) same(o store) bool {
	other, ok := o.(masters)
	return ok && s.Same(other.Masters)
}

func (s masters) check(c *config) error {
	switch {
	case c.acks > 0:
		return invalid("WithReplicaAcks is for one master with replicas: a quorum has none that count")
	case c.limit > 1:
		return invalid("WithLimit and WithShared need one Redis: masters that each count to n do not count to n together. Take one of n locks instead")
	case c.reentryID != "":
		return invalid("WithReentryID needs one Redis: calls that come from elsewhere cannot be let in by a quorum")
	case c.nodeTimeout > c.ttl/2:
		return invalid("WithNodeTimeout(%v) leaves too little of a lease of %v", c.nodeTimeout, c.ttl)
	}
	return s.covers(c.ttl)
}

// covers refuses a lease that may outlast the quarantine.
func (s masters) covers(lease time.Duration) error {
	if d := s.Quarantine; d > 0 && lease > quorum.Covered(d) {
		return invalid("a lease of %v is longer than WithQuarantine(%v) covers, which is %v", lease, d, quorum.Covered(d).Truncate(time.Millisecond))
	}
	return nil
}
