package holdfast

import (
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/quorum"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/redis/go-redis/v9"
)

const (
	defaultQuarantine = 30 * time.Second
	maxQuarantine     = 2 * maxTTL

	maxNodes = 15 // each attempt asks all of them
)

// NewRedLock makes a Locker on independent Redis (or Valkey) masters: the client that has a lock on most of
// them holds it, so that it outlives the loss of the others. Three or five are usual. An even number works and bears no more
// failures than one less: four masters need three, and bear the loss of one, as three do. They must share nothing:
// no replication among them, no proxy in front that may lead two of the clients to one server. Nor is a key to be locked on
// one of them with [New] at the same time: a call that waits there would lose its place.
//
// The Locker is used like that of [New]; redlock.md in this folder tells what is promised and answers the algorithm's
// critics. What differs: [WithReentryID], [WithReplicaAcks], [WithLimit] and [WithShared] are refused, waiters are served first
// come, first served as far as the masters agree on the order of arrival, and a master that has just started does not vote for
// a while, see [WithQuarantine]. It sends nothing yet. The clients stay the caller's, as with New.
//
// It returns an [ErrInvalid] for no clients, more than 15 or nil ones, for two clients with one address or a client of
// Sentinel, and for options that cannot work. That two clients lead to one server by different addresses comes to
// light when they are first asked: then calls fail with an ErrInvalid.
func NewRedLock(clients []*redis.Client, opts ...Option) (*Locker, error) {
	if len(clients) == 0 || len(clients) > maxNodes {
		return nil, invalid("NewRedLock with %d clients: want 1 to %d", len(clients), maxNodes)
	}
	for i, c := range clients {
		if c == nil {
			return nil, invalid("NewRedLock: client %d is nil", i)
		}
		if c.Options().Addr == sentinelAddr {
			return nil, invalid("NewRedLock: client %d is one of Sentinel: a failover forgets locks, which a quorum of independent masters must not", i)
		}
		for j, o := range clients[:i] {
			if o == c || plainDialer(o) && plainDialer(c) && o.Options().Addr == c.Options().Addr && o.Options().Network == c.Options().Network {
				return nil, invalid("NewRedLock: clients %d and %d are for one server, %s", j, i, c.Options().Addr)
			}
		}
	}
	return newLocker(opts, func(l *Locker) store {
		c := quorum.Config{Quarantine: defaultQuarantine, NodeTimeout: l.cfg.nodeTimeout, Inbox: single.InboxName(l.cfg.prefix)}
		if l.cfg.quarantineSet {
			c.Quarantine = l.cfg.quarantine
		}
		c.Report = func(key string, err error) { l.cfg.traces.emit(nodeError, Event{Key: key, Err: err}) }
		return masters{quorum.New(clients, l.env, c)}
	})
}

// sentinelAddr is what go-redis calls the address of a client that asks Sentinel for it.
const sentinelAddr = "FailoverClient"

// plainDialer tells a dialer of go-redis from one of the user's, which may lead anywhere, whatever the address says. By
// its name: go-redis' own is compiled into each of its callers, so that two of them are not the same code.
func plainDialer(c *redis.Client) bool {
	f := runtime.FuncForPC(reflect.ValueOf(c.Options().Dialer).Pointer())
	return f != nil && strings.HasPrefix(f.Name(), reflect.TypeFor[redis.Client]().PkgPath()+".")
}

// WithQuarantine sets for how long a master does not vote after its start: it may have forgotten a lock that is held. It is
// a constant of the deployment and must be the same for all Lockers of these masters: at least 1.01 times the longest lease
// that any of them asks for, and at least 5 s. A call that asks for a longer lease than it covers is refused. Default 30 s;
// at most 48 h. 0 turns it off, for masters that lose nothing (appendfsync always) and for tests: then the crash of a master
// can let a second holder in.
//
// A master's age is its INFO server, which its ACL must allow (+info): one that does not tell does not vote. When all
// masters start anew, no lock can be had for that time; the error holds a [*QuarantineError].
func WithQuarantine(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 0 || d > maxQuarantine || d > 0 && quorum.Covered(d) < minTTL {
			return invalid("WithQuarantine(%v): want 0, or enough for a lease of %v, at most %v", d, minTTL, maxQuarantine)
		}
		c.quarantine, c.quarantineSet = d.Truncate(time.Millisecond), true
		return nil
	})
}

// WithNodeTimeout sets how long one of several masters is waited for while too few of the others have answered. Default: a
// tenth of the TTL, but at least 50 ms and at most 1 s. It should exceed a dial and a round trip, and must be below half a
// TTL; only the latter is checked. Only for [NewRedLock].
func WithNodeTimeout(d time.Duration) Option {
	return option(func(c *config) error {
		if d < time.Millisecond {
			return invalid("WithNodeTimeout(%v): want at least 1ms", d)
		}
		c.nodeTimeout = d
		return nil
	})
}
