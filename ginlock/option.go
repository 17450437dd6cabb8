package ginlock

import (
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// An Option configures the middleware that [New] returns. It only records its argument; New checks it.
type Option interface{ apply(*config) error }

// defaultWait covers the time between the end of a long response, when its client can send the next request, and the release
// that follows it: a round trip to Redis.
const defaultWait = 100 * time.Millisecond

type config struct {
	busy         Policy
	lock         []holdfast.CallOption
	errorHandler func(*gin.Context, error)
	traces       []*Trace
	failOpen     bool
	limited      bool
	also         []target
}

func defaults() config {
	return config{busy: Wait(defaultWait)}
}

// lockOptions returns the options of an acquisition.
func (c *config) lockOptions() []holdfast.CallOption {
	return append(slices.Clip(c.lock), holdfast.WithWait(c.busy.wait))
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// A Policy says what happens to a request whose key is busy. [Wait] makes one. The zero value is Wait(0).
type Policy struct {
	wait  time.Duration
	lease bool
}

// Wait lets a request wait in line for up to max, and then refuses it with 409. The requests of all replicas stand in one
// line, first come, first served, except that those of one replica first hand the lock to each other, for up to 100 ms by
// default: see [holdfast.WithLocalHandover]. With a long wait, requests pile up behind a slow one.
//
// Wait(0) does not wait. A client that sends its requests one after the other can then be refused because of its own
// previous request. If that request's response has a known length and is too long for the buffers of net/http, as a file is,
// the client has all of it before the lock is released.
//
// max bounds the wait for other holders. If Redis does not answer or refuses connections, a request waits for up to max or a
// quarter of the TTL (at most 1 s), whichever is longer. With the default TTL it gets its 503 after 1 s with Wait(100 *
// time.Millisecond), and after 2 s with Wait(2 * time.Second). The wait for a Redis that does not answer is never longer
// than one and a half TTLs.
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// RetryAfterLease makes [Respond] set the Retry-After of a 409 or 429 to what is left of the holder's lease, in seconds,
// rounded up. The holder might release much sooner, or renew. If the lease never ends, as with a key that another library
// wrote without expiry, Retry-After is 5. Default: 1, since most holders release long before their lease expires.
func (p Policy) RetryAfterLease() Policy {
	p.lease = true
	return p
}

// WithBusy sets what happens to a request whose key is busy. Default: Wait(100 * time.Millisecond). A [holdfast.WithWait] of
// the Locker has no effect here.
func WithBusy(p Policy) Option {
	return option(func(c *config) error {
		if p.wait < 0 {
			return invalid("WithBusy(Wait(%v)): negative", p.wait)
		}
		c.busy = p
		return nil
	})
}

// WithLock passes options to the acquisition of the lock, such as its TTL, a label or a bound on the hold. They override the
// Locker's. If several set the same thing, the last one counts. [holdfast.WithWait] has no effect here: see [WithBusy].
//
// With [holdfast.WithReleaseInBackground] the response does not wait for the release, which saves a round trip. A loss that
// only the release detects is then not answered with 503, and no error of the release goes to c.Errors.
func WithLock(opts ...holdfast.CallOption) Option {
	given := slices.Clone(opts)
	return option(func(c *config) error {
		if i := slices.IndexFunc(given, func(o holdfast.CallOption) bool { return o == nil }); i >= 0 {
			return invalid("WithLock: option %d of %d is nil", i+1, len(given))
		}
		c.lock = append(c.lock, given...)
		return nil
	})
}

// WithLimit lets n requests for one key run at a time, on all replicas together: at most 5 exports of a tenant, for example.
// n is from 1 to 1000. With n = 1 requests run one at a time, even if the Locker has a limit. Default: the Locker's limit, if
// it has one; one more request is then refused with 409.
//
// WithLimit(n) does what WithLock([holdfast.WithLimit](n)) does, but for n above 1 it refuses one more request with 429
// instead of 409. 429 (RFC 6585) says that too many requests are running; 409 would speak of the state of a resource.
//
// A handler that locks the same key without a limit runs alone. A lock with a limit does not fence: a write that sqlfence
// guards needs a lock without one, or fails with ErrNoToken.
func WithLimit(n int) Option {
	return option(func(c *config) error {
		c.lock, c.limited = append(c.lock, holdfast.WithLimit(n)), n > 1
		return nil
	})
}

// WithAlso adds a lock. The chain then runs under the lock of [New] and those of all WithAlso. They are taken together, as
// in [holdfast.Locker.DoAll]: requests that name the same things in any order never wait for each other in a circle. A
// transfer:
//
//	ginlock.New(locker, "account", ginlock.JSON("from"), ginlock.WithAlso("account", ginlock.JSON("to")))
//
// Two parts can name the same lock, and there can be up to 63 WithAlso. The request's context carries all of the locks and
// ends when one is lost, and sqlfence guards by all of them.
//
// All other options apply to each of the locks, except that the wait of [WithBusy] bounds the wait for all of them together.
// The request is refused at the first lock that cannot be acquired, with an error that names its key, or at the first part
// without a value. If one lock is lost while the request waits for another, the error matches [holdfast.ErrUnavailable] and
// not ErrLost, as the chain has not run.
//
// Two chains that already hold some of the locks can wait for each other in a circle, until the wait of [WithBusy] ends. If
// a chain holds one of the locks with a higher limit than this middleware's, the request is answered with 500.
func WithAlso(resource string, part Part) Option {
	t := target{resource, part}
	return option(func(c *config) error {
		if wrong := t.wrong(); len(wrong) > 0 {
			return invalid("WithAlso(%q): %s", resource, strings.Join(wrong, "; "))
		}
		c.also = append(c.also, t)
		return nil
	})
}

// WithErrorHandler sets handle, which answers the requests whose chain did not run under the lock to its end. [New] lists
// the cases. If handle sets no status and writes nothing, [Respond] answers. handle can also call Respond itself. Default:
// [Respond].
//
// A chain that has not run is already aborted when handle is called. If the chain has responded, by a status other
// than 200 or by writing, handle is not called.
//
// handle tells the cases apart with errors.Is. Check [holdfast.ErrLost] first: then the chain has run. The others are
// [holdfast.ErrNotAcquired] (a [*holdfast.HeldError]), [holdfast.ErrUnavailable], [holdfast.ErrClosed] and
// [holdfast.ErrInvalid]. Leave everything else, such as an error of a [Part], to Respond, which answers 500.
func WithErrorHandler(handle func(*gin.Context, error)) Option {
	return option(func(c *config) error {
		if handle == nil {
			return invalid("WithErrorHandler(nil)")
		}
		c.errorHandler = handle
		return nil
	})
}

// WithTrace adds hooks, for logs and metrics. Default: the errors go to c.Errors, as described at [New]. Setting a hook
// replaces the entry in c.Errors for what that hook reports.
func WithTrace(t *Trace) Option {
	return option(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		c.traces = append(c.traces, t)
		return nil
	})
}

// WithFailOpen runs the chain without the lock while Redis is unavailable. It gives up mutual exclusion exactly when the
// system is in trouble. While Redis is down, or unreachable from one replica only, any number of requests for the same key
// run at once, alongside holders that still have the lock. Use it if the lock saves work. Do not use it if the lock keeps
// data correct, unless something else does too.
//
// In such a request [holdfast.Held] does not find the lock, sqlfence fails with ErrNoToken, and gormfence lets writes pass
// unless it has WithLockRequired. The error goes to c.Errors. If Redis does not answer, each request still waits as long as
// [Wait] describes. Default: such requests are refused with 503.
func WithFailOpen() Option {
	return option(func(c *config) error { c.failOpen = true; return nil })
}
