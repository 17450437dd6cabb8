package core

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// ownership is what a call has, or may come to have, of a lock in Redis, and then its hold: a tenure on one server, a
// ballot on several.
type ownership interface {
	data() *stake
	// acquire sends one look. With waits the call wants to be told when the lock may be had; told is whether it will.
	acquire(ctx context.Context, waits bool) (c *redisconn.Call, told bool)
	read(c *redisconn.Call) verdict // takes an answered look into account
	leave(c *redisconn.Call)        // stops listening to a look
	// waker says when there is something to accept: what others told, as a grant, with the moment from which on
	// its first lease is to be counted. Without ok it only says that it is time for another look.
	waker() <-chan struct{}
	accept(now timing.Instant) (at timing.Instant, ok bool)
	// renew asks for a lease at once; 0 asks what is left. The answer is as that of renew.lua.
	renew(ctx context.Context, lease time.Duration) *redisconn.Call
	// onward tells whether another call may go on with it: with its place in line, or with the lock itself where asking
	// again under the same id gets it.
	onward() bool
	// undo ends one that nobody will use, in the background where Redis must be told.
	undo()
	// forget releases, and returns ErrLost or ErrUnavailable, with the last failure behind it, where it did not free
	// the lock within limit or until ctx ended.
	forget(ctx context.Context, limit time.Duration) (outcome, cause error)
	over() // no message for it matters any more
	// lost is for a hold that ended without a release: nothing may bring it back, and what a renewal that is under way
	// still does is undone, but not before d is over.
	lost(d time.Duration)
	patience() time.Duration  // for how long one answer is waited for
	allowance() time.Duration // and one look, which may take several
}

// stake is what the two have in common, for those who hand it on.
type stake struct {
	owner string // the value of the lock: an id that names this ownership alone, and the label
	cfg   *config
	block int // how many tokens it reserves, from the first on
	names protocol.Names

	token  int64         // the first; 0 until granted
	began  time.Duration // when it was, or before
	handed int           // how often it was handed over within the process
	sent   time.Duration // when the latest acquire that may have taken effect went out
	inLine bool          // the latest look left it in line
}

func (s *stake) data() *stake { return s }

// servers is what a Locker asks of Redis: a node, or a quorum of them.
type servers interface {
	own(names protocol.Names, cfg *config, block int) ownership
	// open sees to it that those who wait can be told, and returns a channel that is closed when that begins anew.
	open() <-chan struct{}
	isUp() bool // whether they can
	shut()      // no one will wait any more
	// renew lengthens the leases of holds, each to its own, and tells done of each answer. It returns when all are told.
	renew(holds []*hold, leases []time.Duration, done func(h *hold, val any, err error))
	claim(cfg *config, names protocol.Names, tick int64) func(context.Context) *redisconn.Call
	inspect(ctx context.Context, names protocol.Names) *redisconn.Call
	Many() bool // whether one of several may hang while the others serve
	patience(ttl time.Duration) time.Duration
	allowance(ttl time.Duration) time.Duration // for a claim, which may take several answers
	same(o servers) bool
	check(c *config) error            // what options make no sense here
	covers(lease time.Duration) error // where it is too long
}
