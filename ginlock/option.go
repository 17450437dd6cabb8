package ginlock

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/web"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// An Option configures the middleware that [New] returns, which checks it.
type Option interface{ apply(*config) }

type config = web.Config[*gin.Context]

type option func(*config)

func (o option) apply(c *config) { o(c) }

// A Policy says what happens to a request whose key is busy. The zero value is Wait(0).
type Policy struct {
	wait  time.Duration
	lease bool
}

// Wait lets a request wait in line for up to max. Requests are served first come, first served, except that those of one
// replica first hand the lock to each other: see [holdfast.WithLocalHandover]. With a long wait, requests pile up behind a
// slow one. With Wait(0) a client can meet the lock of its own previous request, whose response it already has.
//
// If Redis does not answer, a request by default gets its 503 after 1 s, or after 10 ms once Redis has been silent for that
// long: see [holdfast.WithWait].
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// RetryAfterLease makes [Respond] set the Retry-After of a 409 or 429 to what is left of the holder's lease, or to 5 s if
// it never ends. The holder might release much sooner, or renew.
func (p Policy) RetryAfterLease() Policy {
	p.lease = true
	return p
}

// WithBusy sets what happens to a request whose key is busy. It overrides any [holdfast.WithWait]. Default: Wait(100 *
// time.Millisecond).
func WithBusy(p Policy) Option { return option(func(c *config) { c.Wait, c.Lease = &p.wait, p.lease }) }

// WithLock passes options to the acquisition of the lock, such as its TTL or a label. They override the Locker's. With
// [holdfast.WithReleaseInBackground] nothing reports an error of the release, or a loss that only it detects.
func WithLock(opts ...holdfast.CallOption) Option {
	opts = slices.Clone(opts)
	return option(func(c *config) { c.Lock = append(c.Lock, opts...) })
}

// WithLimit lets n requests for one key run at a time, on all replicas together, and refuses one more with 429. It is
// WithLock([holdfast.WithLimit](n)). Such a lock does not fence: a write that sqlfence guards needs another one, or fails
// with ErrNoToken.
func WithLimit(n int) Option { return WithLock(holdfast.WithLimit(n)) }

// WithAlso adds a lock. The chain runs under the lock of [New] and those of up to 63 WithAlso, taken together as by
// [holdfast.Locker.DoAll], without deadlocks whatever their order. A transfer:
//
//	ginlock.New(locker, "account", ginlock.JSON("from"), ginlock.WithAlso("account", ginlock.JSON("to")))
//
// opts are for this lock alone, such as holdfast.WithLimit(20). Where two parts name one key, the smaller limit
// counts. The other options apply to each lock, and the wait of [WithBusy] to all together. The context ends when one
// of them is lost. Chains that already hold some of the locks can wait in a circle until it ends.
//
// A request that waits for one lock holds those whose keys come before it in byte order. So name the lock with the most room
// last: "by-tenant" for 5 requests of each tenant and "provider" for 20 in all, not "tenant" and "provider".
func WithAlso(resource string, part Part, opts ...holdfast.CallOption) Option {
	opts = slices.Clone(opts)
	return option(func(c *config) { c.Targets = append(c.Targets, target{Resource: resource, Part: part, Own: opts}) })
}

// WithShare has waiting requests take turns by the value of part, with equal parts of the grants: see
// [holdfast.WithShare]. The name is holdfast.Key of the values; a request without them has none.
//
//	ginlock.New(locker, "provider", byProvider, ginlock.WithLimit(20), ginlock.WithShare(ginlock.Value("tenant")))
//
// Take it from the authentication, not from a header: a client that can choose names gets a part for each.
func WithShare(part Part) Option {
	return option(func(c *config) { c.Share = &wiring.Share[*gin.Context]{Part: part} })
}

// WithErrorHandler sets handle, which answers in place of [Respond], unless the chain has responded. Respond still
// answers if handle sets no status and writes nothing. Check [holdfast.ErrLost] first: only then has the chain run.
func WithErrorHandler(handle func(*gin.Context, error)) Option {
	return option(func(c *config) {
		c.SetAnswer(handle == nil, func(_ http.ResponseWriter, c *gin.Context, err error) { handle(c, err) })
	})
}

// WithTrace adds hooks, for logs and metrics. A hook replaces the entry in c.Errors for what it reports.
func WithTrace(t *Trace) Option { return option(func(c *config) { c.AddTrace((*trace)(t)) }) }

// WithFailOpen runs the chain without the lock while Redis is unavailable, unless the request's context has ended. It
// gives up mutual exclusion exactly when the system is in trouble: any number of requests for a key run at once. Use
// it if the lock saves work, not if it keeps data correct: sqlfence then fails with ErrNoToken, and gormfence lets
// writes pass unless it has WithLockRequired. Default: such requests are refused with 503.
func WithFailOpen() Option { return option(func(c *config) { c.FailOpen = true }) }

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. They run on the
// request's goroutine, before its answer, so they must return quickly. A [holdfast.Trace] of the Locker reports what
// happens to the lock.
type Trace struct {
	// Refused: the chain does not run.
	Refused func(c *gin.Context, err error)
	// Lost: the lock was lost while the chain ran.
	Lost func(c *gin.Context, err error)
	// Unreleased: Redis did not confirm the release within 1 s. The lock may stay until its lease expires.
	Unreleased func(c *gin.Context, err error)
	// Unlocked: the chain runs without the lock, see [WithFailOpen].
	Unlocked func(c *gin.Context, err error)
}

type trace = web.Trace[*gin.Context]

// errorsTrace has the hooks that apply if no Trace sets them. A busy key and a client's mistake are not errors of the
// server.
var errorsTrace = trace{
	Refused: func(c *gin.Context, err error) {
		if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrInvalid) {
			_ = c.Error(err)
		}
	},
	Lost: func(c *gin.Context, err error) {
		if !slices.ContainsFunc(c.Errors, func(e *gin.Error) bool { return errors.Is(e.Err, holdfast.ErrLost) }) {
			_ = c.Error(err)
		}
	},
	Unreleased: func(c *gin.Context, err error) { _ = c.Error(err) },
	Unlocked:   func(c *gin.Context, err error) { _ = c.Error(err) },
}
