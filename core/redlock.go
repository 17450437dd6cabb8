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

// NewRedLock makes a Locker on several independent Redis or Valkey masters. The client that holds the lock on most of
// them holds it, so that a lock survives the loss of a minority. Three or five masters are usual. An even number works
// but survives no more: four need a majority of three, and so survive the loss of one, just like three.
//
// The masters must share nothing: no replication among them, and no proxy through which two of the clients could reach
// one server. Do not lock the same key through [New] on one of them at the same time: a call that waits there would lose
// its place in line.
//
// The Locker is used like that of New, and it sends nothing yet. The clients remain the caller's, as with New. These
// things differ:
//
//   - [WithReentryID], [WithReplicaAcks], [WithLimit] and [WithShared] are refused.
//   - Waiters are served first come, first served only as far as the masters agree on the order of arrival.
//   - A master that has just started does not vote for a while, see [WithQuarantine].
//
// core/redlock.md describes what is promised, and answers the critics of the algorithm.
//
// NewRedLock returns an [ErrInvalid] for no clients, more than 15 clients or a nil client, for two clients with one
// address, for a client of Sentinel, and for options that can never work. If two clients reach one server by different
// addresses, that is detected when they are first asked, and calls fail with an ErrInvalid.
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
				return nil, invalid("NewRedLock: clients %d and %d are for the same server, %s", j, i, c.Options().Addr)
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

// WithQuarantine sets how long a master does not vote after its start, because it may have forgotten a lock that is held.
// It applies to [NewRedLock] alone. Default: 30 s; at most 48 h.
//
// d is a constant of the deployment. All Lockers of these masters must use the same one: 1.01 times the longest lease
// that any of them asks for, and 5 s more, or longer. A call that asks for a longer lease than d covers is refused. 0
// turns the quarantine off, for tests and for masters that lose nothing (appendfsync always); with other masters, a crash
// can then let a second holder in.
//
// A master's age comes from INFO server, which its ACL must allow (+info); a master that does not report it does not
// vote. When all masters start at once, no lock can be acquired during the quarantine, and the error contains a
// [*QuarantineError].
func WithQuarantine(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 0 || d > maxQuarantine || d > 0 && quorum.Covered(d) < minTTL {
			return invalid("WithQuarantine(%v): want 0, or enough for a lease of %v, at most %v", d, minTTL, maxQuarantine)
		}
		c.quarantine, c.quarantineSet = d.Truncate(time.Millisecond), true
		return nil
	})
}

// WithNodeTimeout sets how long a call waits for a master that does not answer, if it needs that master for a majority. It
// applies to [NewRedLock] alone. Default: a tenth of the call's TTL, at least 50 ms and at most 1 s. A call whose TTL is less
// than twice the node timeout is refused, and so is such a Locker. The node timeout should be longer than a dial and a round
// trip together, which is not checked.
func WithNodeTimeout(d time.Duration) Option {
	return option(func(c *config) error {
		if d < time.Millisecond {
			return invalid("WithNodeTimeout(%v): want at least 1ms", d)
		}
		c.nodeTimeout = d
		return nil
	})
}
