package ginlock

import (
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// Option configures the middleware that [New] makes. An option only records what it is given; New judges it.
type Option interface{ apply(*config) error }

// defaultWait covers the moment between the end of a long response, when its client may send the next request,
// and the release behind it: a round trip to Redis.
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

// lockOptions are those of an acquisition.
func (c *config) lockOptions() []holdfast.CallOption {
	return append(slices.Clip(c.lock), holdfast.WithWait(c.busy.wait))
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// Policy says what becomes of a request whose key is busy: [Wait]. The zero value is Wait(0).
type Policy struct {
	wait  time.Duration
	lease bool
}

// Wait waits in line for up to max, among the requests of all replicas, first come, first served but for
// [holdfast.WithLocalHandover], and then refuses the request with 409. Wait(0) does not wait. Then a client that sends its
// requests one after the other can be refused because of itself: a response of known length that is too long for the buffers
// of net/http, as a file is, reaches it whole before the lock is released. With a long wait, requests pile up behind a slow one.
//
// max bounds the wait for other holders. A Redis that does not answer, or refuses connections, is given a quarter of the TTL,
// at most 1 s, if max is less: with the default TTL a request gets its 503 after 1 s with Wait(100 * time.Millisecond), and
// after 2 s with Wait(2 * time.Second). No wait for a silent Redis is longer than one and a half TTLs.
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// RetryAfterLease has [Respond] set the Retry-After of a 409 or 429 to what the holder's lease has left, in seconds, rounded
// up; 5 if it never ends, as with a key that another library wrote without expiry. The holder may release much sooner, or
// renew. Default: 1, as most holders release long before their lease ends.
func (p Policy) RetryAfterLease() Policy {
	p.lease = true
	return p
}

// WithBusy sets what becomes of a request whose key is busy. Default: Wait(100 * time.Millisecond).
func WithBusy(p Policy) Option {
	return option(func(c *config) error {
		if p.wait < 0 {
			return invalid("WithBusy(Wait(%v)): negative", p.wait)
		}
		c.busy = p
		return nil
	})
}

// WithLock passes options on to the acquisition: the TTL, a label, a bound to the hold. They win over those of the
// Locker, and of several that say the same the last one wins. What [holdfast.WithWait] says does not count, here or in
// the Locker: see [WithBusy].
//
// With [holdfast.WithReleaseInBackground] the response does not wait for the release, which saves a round trip. A loss that
// only the release finds is then not answered with 503, and no error of the release is in c.Errors.
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

// WithLimit lets n requests at a time run for one key, on all replicas together: at most 5 exports of a tenant, say. It does
// what WithLock(holdfast.WithLimit(n)) does, see [holdfast.WithLimit], and for n above 1 one more request is refused with 429,
// not with 409 as with that option alone: the limit is that of the caller, and says nothing about the state of a resource (RFC
// 6585). A handler that locks the same key without a limit runs alone. It does not fence: a write that sqlfence guards needs a
// lock without a limit, or fails with ErrNoToken. From 1, which is a lock without a limit whatever the Locker has, to 1000.
// Default: the limit of the Locker, if it has one.
func WithLimit(n int) Option {
	return option(func(c *config) error {
		c.lock, c.limited = append(c.lock, holdfast.WithLimit(n)), n > 1
		return nil
	})
}

// WithAlso adds a lock: the chain then runs under that of [New] and those of all WithAlso, taken together as
// [holdfast.Locker.DoAll] does it: requests that name the same things in any order never wait for each other in a circle. A
// transfer:
//
//	ginlock.New(locker, "account", ginlock.JSON("from"), ginlock.WithAlso("account", ginlock.JSON("to")))
//
// All other options count for each of the locks, and the wait of [WithBusy] for all of them together. The first that cannot be
// had refuses the request, and so does the first part without a value; the error names the key. Two parts may name the same
// lock. There may be 63 WithAlso. The request's context carries all of the locks, ends when one is lost, and has sqlfence guard
// by all of them.
//
// A chain that already has some of the locks waits for the others, which can make a circle with other such chains: that ends
// with the wait. Where it has one [WithLimit] and this middleware wants it alone, the request is answered with 500.
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

// WithErrorHandler sets handle, which answers the requests whose chain did not run under the lock to its end; [New] lists the
// cases. A chain that has not run is aborted already, and one that has answered, by a status or a body, is not asked about. If
// handle sets no status and writes nothing, [Respond] answers. handle may also call Respond for the cases that it does not care
// about. Default: [Respond].
//
// handle tells the cases apart by errors.Is: [holdfast.ErrLost] first, for what ran already, then
// [holdfast.ErrNotAcquired] (a [*holdfast.HeldError]), [holdfast.ErrUnavailable], [holdfast.ErrClosed], [holdfast.ErrInvalid].
// If the request's context ended the wait, the error matches its error too.
func WithErrorHandler(handle func(*gin.Context, error)) Option {
	return option(func(c *config) error {
		if handle == nil {
			return invalid("WithErrorHandler(nil)")
		}
		c.errorHandler = handle
		return nil
	})
}

// WithTrace adds hooks, for logs and metrics. Default: c.Errors is told of what the hooks Lost, Unreleased and Unlocked hear of,
// and of refusals other than a 409, a 429, a 400 and a 413. A hook that is set replaces that for what it hears of.
func WithTrace(t *Trace) Option {
	return option(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		c.traces = append(c.traces, t)
		return nil
	})
}

// WithFailOpen runs the chain without a lock when Redis is unavailable. [holdfast.Held] does not find the lock in the
// request's context then, sqlfence fails with ErrNoToken, gormfence lets its writes pass unless it has WithLockRequired, and the
// error is in c.Errors, see [WithTrace]. Default: such requests are refused with 503.
//
// It gives up the lock exactly when the system is in trouble: while Redis is away, or away from one replica only, any
// number of requests for the same key run at once, beside holders that still have the lock. Use it where a lock saves work.
// Do not use it where the lock keeps data right, unless something else does too. A silent Redis still costs each request
// the time that [Wait] describes.
func WithFailOpen() Option {
	return option(func(c *config) error { c.failOpen = true; return nil })
}
