// Package store is between package holdfast and the packages that are beside it: where a Locker keeps its locks, and how
// another package makes a Locker that keeps them elsewhere than in one Redis. Importing package holdfast sets its variables.
package store

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// A Store is where a Locker keeps its locks: a *single.Redis, or the masters of package redlock.
type Store interface {
	Clients() []redis.UniversalClient
	Check(want single.Want) error                            // refuses what makes no sense there
	Open() (news <-chan struct{}, up bool)                   // opens the inbox for waiters: whether it can receive grants, and when
	Close(over bool)                                         // no call will wait any more, or the Locker is shut down
	Patience(ttl time.Duration) (answer, call time.Duration) // how long to wait for one answer, and for all that one call needs
	Claim(names protocol.Names, tick int64, ttl time.Duration, w protocol.Window) func(context.Context) *redisconn.Call
	Inspect(ctx context.Context, ask protocol.Question, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call
}

// A Maker is a Store that makes the owners of its locks.
type Maker interface {
	Store
	Own(key protocol.Key, want single.Want) Owner
}

// An Owner holds, or may come to hold, a lock, and is used once. A *single.Owner is one.
type Owner interface {
	Try(ctx context.Context, c *redisconn.Call, waits bool, limit time.Duration) (told bool)
	Read(c *redisconn.Call) single.Verdict
	Leave(c *redisconn.Call)
	Wake() <-chan struct{}
	Accept(now timing.Instant) (token int64, at timing.Instant, d time.Duration)
	Onward() bool
	Renew(ctx context.Context, d time.Duration, then func(*redisconn.Call)) *redisconn.Call
	Release(ctx context.Context, limit, lasting time.Duration) (single.Outcome, error)
	Pass(limit, lasting time.Duration, told func(single.Outcome, error))
	Undo(since time.Duration)
	End(left time.Duration)
}

// A Locker is what the packages beside holdfast know of a *holdfast.Locker.
type Locker struct {
	Env    *timing.Env
	Prefix string        // of its keys
	TTL    time.Duration // of its leases
	Report func(key string, err error)
	Store  Store // nil while it is made
}

var (
	// New returns a *holdfast.Locker. opts is a []holdfast.Option.
	New func(opts any, connect func(Locker) Maker) (locker any, err error)

	// Refused returns a holdfast.Option that package holdfast refuses with err.
	Refused func(err error) any

	// Of returns what there is to know of a *holdfast.Locker.
	Of func(locker any) Locker

	// InTime returns ctx, which may be that of a lock, as one that does not ask Redis whether it has ended.
	InTime func(ctx context.Context) context.Context
)
