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

// store is where a Locker keeps its locks: one Redis, or several masters.
type store interface {
	own(key protocol.Key, want single.Want) *stake
	same(o store) bool
	check(c *config) error            // refuses options that make no sense for this store
	covers(lease time.Duration) error // refuses a lease that is too long for it

	Several() bool                             // whether a majority decides
	Many() bool                                // whether one of several servers may hang while the others serve
	Open() <-chan struct{}                     // opens the inbox for waiters; the channel is closed when the inbox is up again
	Up() bool                                  // whether the inbox can receive grants
	Close()                                    // no call will wait any more
	Patience(ttl time.Duration) time.Duration  // how long to wait for one answer
	Allowance(ttl time.Duration) time.Duration // how long all that one call needs may take
	Claim(names protocol.Names, tick int64, ttl time.Duration, w protocol.Window) func(context.Context) *redisconn.Call
	Inspect(ctx context.Context, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call
}

// owner holds, or may come to hold, a lock, and is used once. It is a *single.Owner or a *quorum.Owner.
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

// stake is an owner, and what the calls of this process that use that owner one after the other have to know.
type stake struct {
	owner
	key string // prefix included
	cfg *config

	token   int64         // the first one; 0 until granted
	began   time.Duration // when it was granted, or earlier
	passed  time.Duration // when it was last handed over
	sharing *sharing      // if its holders are readers
	room    *room         // or nil
	block   int16         // how many tokens it reserves, beginning with token
	handed  int16         // how often it was handed over

	usedHold, usedQueue bool // whether those of room are in use
}

// room has what most stakes need one of, so that neither costs an allocation. It is made together with the stake and
// its owner. They and the allocator's header fill 704 bytes; one more word would make that 768.
type room struct {
	hold
	queue
}

type whole struct {
	stake
	single.Owner
	room
}

// newHold returns a hold, the one in room if that is free.
func (s *stake) newHold() *hold {
	if s.room == nil || s.usedHold {
		return new(hold)
	}
	s.usedHold = true
	return &s.room.hold
}

// newQueue returns a queue, the one in room if that is free.
func (s *stake) newQueue() *queue {
	if s.room == nil || s.usedQueue {
		return new(queue)
	}
	s.usedQueue = true
	return &s.room.queue
}

// granted sets the token of a grant that was just received. It may differ from the known token: the lease of an earlier
// grant may have ended while nobody could listen.
func (s *stake) granted(token int64) {
	if token != s.token {
		s.token, s.handed = token, 0
	}
}

func (s *stake) undo() { s.Undo(s.passed) }

// one is a store on one Redis.
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

// check also checks WithReplicaAcks against the TTL and the client.
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

// masters is a store on several masters.
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
		return invalid("WithReplicaAcks is for one master with replicas: with several masters, replicas do not count")
	case c.limit > 1:
		return invalid("WithLimit and WithShared need one Redis: masters that each count to n do not count to n together. Use n locks instead, and take one of them")
	case c.reentryID != "":
		return invalid("WithReentryID needs one Redis: a quorum cannot let in calls from other processes")
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
