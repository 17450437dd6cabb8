package ginlock

import (
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
)

// Option configures the middleware that [New] makes.
type Option interface{ apply(*config) }

// defaultWait covers the moment between the end of a long response, when its client may send the next request,
// and the release behind it: a round trip to Redis.
const defaultWait = 100 * time.Millisecond

type config struct {
	lock         []holdfast.CallOption
	skipper      func(*gin.Context) bool
	errorHandler func(*gin.Context, error)
	routeScope   bool
	failOpen     bool
	retryLease   bool
}

func defaults() config {
	return config{lock: []holdfast.CallOption{holdfast.WithWait(defaultWait)}}
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// WithWait sets how long a request waits for another holder before it is refused. Default: 100 ms. 0 refuses at
// once, and with it a client that sends its requests one after the other can be refused because of itself: the
// end of a long response reaches it before the lock is released. Too long, and waiting requests pile up behind
// a slow one.
//
// It bounds the waiting for others. A Redis that does not answer is given up to a quarter of the TTL, at most
// 1 s, beyond it, and about a TTL altogether. The wait begins with the request, so that a Redis that takes
// longer than it for one answer is asked only once.
func WithWait(d time.Duration) Option { return WithLock(holdfast.WithWait(d)) }

// WithLock passes options on to the acquisition: the TTL, a label, a bound to the hold. They win over those of
// the Locker. Of several, the last one wins, so that WithLock(holdfast.WithWait(d)) is another way to write
// WithWait(d); a [holdfast.WithWait] given to the Locker itself does not count here.
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithRouteScope makes the method and the route's path, as registered, part of the key: holdfast.Key(resource,
// "POST", "/orders/:id/pay", parts...). It is meant for values that mean something on one route only, such as
// an Idempotency-Key. Default: without, so that whatever names the same resource and parts is excluded. With
// it, two routes to the same thing do not exclude each other, and a route that is renamed has other keys.
func WithRouteScope() Option {
	return option(func(c *config) { c.routeScope = true })
}

// WithSkipper exempts the requests for which skip returns true: the middleware lets them through without a
// lock. It is asked first of all, also about requests that match no route. Default: none is exempt.
func WithSkipper(skip func(*gin.Context) bool) Option {
	if skip == nil {
		panic("ginlock: WithSkipper(nil)")
	}
	return option(func(c *config) { c.skipper = skip })
}

// WithErrorHandler has handle answer where the chain did not run under the lock to its end; see [New] for the
// cases. The chain is aborted already if it has not run. What handle leaves unanswered, having set no status
// and written nothing, is answered by [Respond], which it may also call for the cases that it does not care
// about. Default: [Respond].
//
// handle tells the cases apart by errors.Is: [holdfast.ErrLost] first, for what ran already, then
// [holdfast.ErrNotAcquired] (a [*holdfast.HeldError]), [holdfast.ErrUnavailable], [holdfast.ErrClosed], [holdfast.ErrInvalid].
// Where the request's context ended the wait, the error matches its error too.
func WithErrorHandler(handle func(*gin.Context, error)) Option {
	if handle == nil {
		panic("ginlock: WithErrorHandler(nil)")
	}
	return option(func(c *config) { c.errorHandler = handle })
}

// WithRetryAfterLease has a 409 tell the client to wait for as long as the holder's lease has left, rounded up; 5 s where it
// never ends. The holder may be through much sooner, or renew. Default: 1 s, or less where the lease ends sooner, which in
// whole seconds is 1 too.
func WithRetryAfterLease() Option {
	return option(func(c *config) { c.retryLease = true })
}

// WithFailOpen runs the chain without a lock when Redis is unavailable; [Get] finds none then, and the error is
// in c.Errors. Default: such requests are refused with 503.
//
// It gives up the lock exactly when the system is in trouble: while Redis is away, or away from one replica
// only, any number of requests for the same key run at once, beside holders that still have the lock. Use it
// where a lock saves work and not where it keeps data right, unless something else does that. A silent Redis
// still costs each request the time that [WithWait] describes.
func WithFailOpen() Option {
	return option(func(c *config) { c.failOpen = true })
}
