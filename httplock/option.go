package httplock

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/web"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// An Option configures a [Middleware] or [Transport].
type Option interface{ apply(*config) }

type config = web.Config[*http.Request]

type option func(*config)

func (o option) apply(c *config) { o(c) }

// target names what is locked.
type target = wiring.Target[*http.Request]

// A Policy says what happens to a request whose key is busy. The zero value is Wait(0).
type Policy struct {
	wait  time.Duration
	lease bool
}

// Wait lets a request wait in line for up to max. Requests are served first come, first served, except that those of one
// replica first hand the lock to each other: see [holdfast.WithLocalHandover]. With Wait(0) a client can meet the lock of its own previous request, whose response it already has.
//
// If Redis does not answer, a request by default gets its 503 after 1 s, or after 10 ms once Redis has been silent for that
// long.
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// RetryAfterLease makes [Respond] set the Retry-After of a 409 or 429 to what is left of the holder's lease, or to 5 s if
// it never ends. The holder might release much sooner, or renew.
func (p Policy) RetryAfterLease() Policy {
	p.lease = true
	return p
}

// WithBusy sets what happens to a request whose key is busy. It overrides any [holdfast.WithWait]. Default: Wait(100 *
// time.Millisecond); in a [Transport] until the request's context ends, or as WithWait says.
func WithBusy(p Policy) Option { return option(func(c *config) { c.Wait, c.Lease = &p.wait, p.lease }) }

// WithLock passes options to the acquisition of the lock, such as its TTL or a label. With
// [holdfast.WithReleaseInBackground] nothing reports an error of the release, or a loss that only it detects.
func WithLock(opts ...holdfast.CallOption) Option {
	opts = slices.Clone(opts)
	return option(func(c *config) { c.Lock = append(c.Lock, opts...) })
}

// WithLimit lets n requests for one key run at a time, on all replicas together, and refuses one more with 429. It is
// WithLock([holdfast.WithLimit](n)). Such a lock does not fence: a write that sqlfence guards needs another one, or fails
// with ErrNoToken.
func WithLimit(n int) Option { return WithLock(holdfast.WithLimit(n)) }

// WithAlso adds a lock. The request runs under the lock of [Middleware] or [Transport] and those of up to 63 WithAlso, taken
// together as by [holdfast.Locker.DoAll], without deadlocks whatever their order. A transfer:
//
//	httplock.Middleware(locker, "account", httplock.JSON("from"), httplock.WithAlso("account", httplock.JSON("to")))
//
// opts are for this lock alone, such as holdfast.WithLimit(20). Where two parts name one key, the smaller limit
// counts. The other options apply to each lock, and the wait of [WithBusy] to all together. The context ends when one
// of them is lost.
//
// A request that waits for one lock holds those whose keys come before it in byte order. So name the lock with the most room
// last: "by-tenant" for 5 calls of each tenant and "provider" for 20 in all, not "tenant" and "provider".
func WithAlso(resource string, part Part, opts ...holdfast.CallOption) Option {
	opts = slices.Clone(opts)
	return option(func(c *config) { c.Targets = append(c.Targets, target{Resource: resource, Part: part, Own: opts}) })
}

// WithShare has waiting requests take turns by the value of part, with equal parts of the grants: see
// [holdfast.WithShare]. The name is holdfast.Key of the values; a request without them has none.
// Take it from the authentication, not from a header: a client that can choose names gets a part for each.
func WithShare(part Part) Option {
	return option(func(c *config) { c.Share = &wiring.Share[*http.Request]{Part: part} })
}

// WithErrorHandler sets handle, which answers in place of [Respond], unless the handler has responded. Respond still
// answers if handle writes nothing. Check [holdfast.ErrLost] first: only then has the handler run.
func WithErrorHandler(handle func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return option(func(c *config) { c.SetAnswer(handle == nil, handle) })
}

// WithTrace adds hooks, for logs and metrics. A hook replaces the line in the log for what it reports.
func WithTrace(t *Trace) Option { return option(func(c *config) { c.AddTrace((*trace)(t)) }) }

// WithFailOpen runs the request without the lock while Redis is unavailable, unless its context has ended: any number of
// requests for a key run at once, exactly when the system is in trouble. Use it if the lock saves work, not if it keeps data
// correct: sqlfence then fails with ErrNoToken, and gormfence lets writes pass unless it has WithLockRequired. Default: such
// requests are refused with 503.
func WithFailOpen() Option { return option(func(c *config) { c.FailOpen = true }) }

// Trace is a set of hooks. Any of them may be nil. They run before the
// answer, or before the end of a [Transport]'s response, so they must return quickly. A [holdfast.Trace] of the Locker
// reports what happens to the lock.
type Trace struct {
	// Refused: the request does not run.
	Refused func(r *http.Request, err error)
	// Lost: the lock was lost while the request ran.
	Lost func(r *http.Request, err error)
	// Unreleased: Redis did not confirm the release within 1 s. The lock may stay until its lease expires.
	Unreleased func(r *http.Request, err error)
	// Unlocked: the request runs without the lock, see [WithFailOpen].
	Unlocked func(r *http.Request, err error)
}

type trace = web.Trace[*http.Request]

// logTrace has the hooks that apply if no Trace sets them. A busy key and a client's mistake are not errors of the
// server. A loss is one line: a holdfast.LogTrace has it in place of this.
var logTrace = trace{
	Refused: func(r *http.Request, err error) {
		if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrInvalid) {
			log(slog.LevelError, "a request was refused", r, err)
		}
	},
	Lost: func(r *http.Request, err error) {
		var core interface{ Logged() bool }
		if !errors.As(err, &core) || !core.Logged() {
			log(slog.LevelError, "the lock was lost while its request ran", r, err)
		}
	},
	Unreleased: func(r *http.Request, err error) {
		log(slog.LevelWarn, "the release of a lock was not confirmed", r, err)
	},
	Unlocked: func(r *http.Request, err error) { log(slog.LevelWarn, "a request runs without its lock", r, err) },
}

// callTrace is that of a Transport, whose caller receives the error of what is refused.
var callTrace = trace{Lost: logTrace.Lost, Unreleased: logTrace.Unreleased, Unlocked: logTrace.Unlocked}

func log(level slog.Level, what string, r *http.Request, err error) {
	slog.Log(r.Context(), level, "httplock: "+what, "method", r.Method, "host", r.Host, "path", r.URL.Path, "err", err)
}
