package redlock

import (
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/redis/go-redis/v9"
)

const (
	defaultQuarantine = 30 * time.Second
	maxQuarantine     = 48 * time.Hour
	shortest          = 100 * time.Millisecond // the shortest lease that package holdfast takes

	maxNodes = 15 // each attempt asks all of them
)

// New makes a Locker on the masters behind clients, and sends nothing yet. The clients remain the caller's. opts can
// have the options of package holdfast too.
//
// New returns a [holdfast.ErrInvalid] for no clients, more than 15 or a nil client, for two clients with one address,
// for a client of Sentinel, and for options that can never work. If two clients reach one server by different
// addresses, calls fail with an ErrInvalid.
func New(clients []*redis.Client, opts ...holdfast.Option) (*holdfast.Locker, error) {
	if len(clients) == 0 || len(clients) > maxNodes {
		return nil, invalid("%d clients: want 1 to %d", len(clients), maxNodes)
	}
	for i, c := range clients {
		if c == nil {
			return nil, invalid("client %d is nil", i)
		}
		if c.Options().Addr == sentinelAddr {
			return nil, invalid("client %d is one of Sentinel: a failover forgets locks, which a quorum of independent masters must not", i)
		}
		for j, o := range clients[:i] {
			if o == c || plainDialer(o) && plainDialer(c) && o.Options().Addr == c.Options().Addr && o.Options().Network == c.Options().Network {
				return nil, invalid("clients %d and %d are for the same server, %s", j, i, c.Options().Addr)
			}
		}
	}
	c := config{quarantine: defaultQuarantine}
	var others []holdfast.Option
	for _, o := range opts {
		own, ok := o.(option)
		if !ok {
			others = append(others, o)
		} else if err := own.set(&c); err != nil {
			return nil, err
		}
	}
	l, err := store.New(others, func(l store.Locker) store.Maker {
		c.inbox, c.report = single.InboxName(l.Prefix), l.Report
		return newMasters(clients, l.Env, c)
	})
	if err != nil {
		return nil, err
	}
	return l.(*holdfast.Locker), nil
}

// sentinelAddr is what go-redis calls the address of a client that asks Sentinel for it.
const sentinelAddr = "FailoverClient"

// plainDialer tells a dialer of go-redis from one of the user's, which may lead anywhere, whatever the address says. By
// its name: go-redis' own is compiled into each of its callers, so that two of them are not the same code.
func plainDialer(c *redis.Client) bool {
	f := runtime.FuncForPC(reflect.ValueOf(c.Options().Dialer).Pointer())
	return f != nil && strings.HasPrefix(f.Name(), reflect.TypeFor[redis.Client]().PkgPath()+".")
}

// option is an option of this package. Package holdfast refuses it.
type option struct {
	holdfast.Option
	set func(*config) error
}

func newOption(set func(*config) error) holdfast.Option {
	return option{store.Refused(invalid("WithQuarantine and WithNodeTimeout are for redlock.New")).(holdfast.Option), set}
}

// WithQuarantine sets how long a master does not vote after its start, because it may have forgotten a lock that is
// held. Default: 30 s; at most 48 h.
//
// d is a constant of the deployment. All Lockers of these masters must use the same one: at least 1.01 times the
// longest lease that any of them asks for, and 5 s more. A call that asks for a longer lease than d covers is refused.
// 0 turns the quarantine off, for tests and for masters that lose nothing (appendfsync always); with other masters, a
// crash can then let a second holder in.
//
// A master's age comes from INFO server; a master that does not report it does not vote. When all masters start at
// once, no lock can be acquired during the quarantine, and the error contains a [*QuarantineError].
func WithQuarantine(d time.Duration) holdfast.Option {
	return newOption(func(c *config) error {
		if d < 0 || d > maxQuarantine || d > 0 && covered(d) < shortest {
			return invalid("WithQuarantine(%v): want 0, or enough for a lease of %v, at most %v", d, shortest, maxQuarantine)
		}
		c.quarantine = d.Truncate(time.Millisecond)
		return nil
	})
}

// WithNodeTimeout sets how long a call waits for a master that does not answer, if it needs that master for a majority.
// Default: a tenth of the call's TTL, at least 50 ms and at most 1 s. It should be longer than a dial and a round trip
// together. A TTL of less than twice the node timeout is refused.
func WithNodeTimeout(d time.Duration) holdfast.Option {
	return newOption(func(c *config) error {
		if d < time.Millisecond {
			return invalid("WithNodeTimeout(%v): want at least 1ms", d)
		}
		c.nodeTimeout = d
		return nil
	})
}

// Check refuses what makes no sense with several masters, and a lease that may outlast the quarantine.
func (q *masters) Check(want single.Want) error {
	switch d := q.quarantine; {
	case want.Acks > 0:
		return invalid("WithReplicaAcks is for one master with replicas: with several masters, replicas do not count")
	case want.Limit > 1:
		return invalid("WithLimit and WithShared need one Redis: masters that each count to n do not count to n together. Use n locks instead, and take one of them")
	case want.ReentryID != "":
		return invalid("WithReentryID needs one Redis: a quorum cannot let in calls from other processes")
	case want.Share != nil:
		return invalid("WithShare and WithShareWeight need one Redis: masters do not agree on whose turn it is")
	case q.nodeTimeout > want.TTL/2:
		return invalid("WithNodeTimeout(%v) leaves too little of a lease of %v", q.nodeTimeout, want.TTL)
	case d > 0 && want.TTL > covered(d):
		return invalid("a lease of %v is longer than WithQuarantine(%v) covers, which is %v", want.TTL, d, covered(d).Truncate(time.Millisecond))
	}
	return nil
}
