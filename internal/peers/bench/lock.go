package main

import (
	"context"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// lease is far longer than a cycle, so that no contender renews within one.
const lease = 15 * time.Second

// held is a lock that somebody has. It is released once.
type held interface {
	Release(ctx context.Context) error
}

// releaser is a held lock whose own method has another shape.
type releaser func(ctx context.Context) error

func (r releaser) Release(ctx context.Context) error { return r(ctx) }

// trier takes locks that are free. Its methods may be called concurrently.
type trier interface {
	// try fails where the lock on key is held.
	try(ctx context.Context, key string) (held, error)
	close() error
}

// waiter is one way to wait for a lock that somebody else holds.
type waiter interface {
	trier
	// acquire waits for the lock on key until ctx ends; ctx has a deadline. The lock stays held, also after the
	// end of ctx, until it is released.
	acquire(ctx context.Context, key string) (held, error)
	// ping is one round trip on a connection of the kind that the lock's commands take.
	ping(ctx context.Context) error
}

// rival is a waiter before the race.
type rival struct {
	name   string
	client string // whose round trips it makes
	// sends lists the commands that the client sends; no script of the rival calls them. Redis counts both alike, so
	// that its statistics do not tell which is which. Where subscriptions and connections are kept alive with PING,
	// that counts too.
	sends []string
	open  func(t *target) (waiter, error)
}

// The names of those that targets and tests are about.
const (
	us         = "holdfast"
	background = "holdfast (background)" // WithReleaseInBackground
	bare       = "floor"
	timer      = "goroutine and PEXPIRE"
	failFast   = "redsync (fail fast)"
)

const goRedis = "go-redis"

var sentByScripts = []string{"evalsha", "eval"}

// sentBySetters take with SET and release with a script.
var sentBySetters = []string{"set", "evalsha", "eval"}

// rivals contend in turns, the peers behind these. The first one is what the others are compared with.
var rivals = []rival{
	{us, goRedis, sentByHoldfast, openHoldfast()},
	{"holdfast (no local line)", goRedis, sentByHoldfast, openHoldfast(withoutLocalLine)},
}

// soloists take locks that are free, the peers behind these. The first one is what the others are compared with: the floor is
// the least that a correct lock on one Redis does. No renewal, no fencing token, no loss detection, no answer within the
// caller's deadline.
var soloists = []rival{
	{bare, goRedis, sentBySetters, openPeer(peers.Plain, peers.Settings{})},
	{us, goRedis, sentByHoldfast, openHoldfast()},
	{background, goRedis, sentByHoldfast, openHoldfast(holdfast.WithReleaseInBackground())},
}

func names(rivals []rival) (all []string) {
	for _, r := range rivals {
		all = append(all, r.name)
	}
	return all
}

// target is the server as contenders reach it.
type target struct {
	addr string
	rdb  *redis.Client // shared by all that use go-redis
}

func newTarget(addr string, pool int) *target { return newTargetWith(addr, pool, true) }

// newTargetWith lets the deadlines of contexts count for the client, which they do not by default, or not.
func newTargetWith(addr string, pool int, timeouts bool) *target {
	return &target{addr, redis.NewClient(&redis.Options{Addr: addr, PoolSize: pool, ContextTimeoutEnabled: timeouts})}
}

func (t *target) close() error { return t.rdb.Close() }

// clients are how go-redis' client is set up: as users have it, and with the deadlines of contexts.
var clients = []struct {
	name     string
	timeouts bool
}{{"default", false}, {"ContextTimeoutEnabled", true}}
