package ginlock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	// releaseBound is how long the end of a response may wait for Redis to confirm the release.
	releaseBound = time.Second

	// longestKey is the length of the longest key that holdfast.Key makes.
	longestKey = 256

	// mostLocks is how many locks DoAll takes at most.
	mostLocks = 64
)

// New returns a middleware that runs the rest of the chain under the lock holdfast.Key(resource, parts...), where part
// takes the parts from the request. The lock keeps out everything else that locks the same key in the same Redis: another
// route, a task, a cron job.
//
// New checks its arguments and all options together. It panics if any is wrong, with an error that names each mistake and
// matches [holdfast.ErrInvalid]. That includes options that contradict each other or those of the locker, such as a
// WithMaxHold below the TTL. No other function of this package panics.
//
// Put the middleware on routes or groups. Given to router.Use, it also sees requests that match no route. They have no
// parameters to name a lock by, and get gin's own 404 or 405. The NoRoute and NoMethod handlers do not run: one that does
// real work, such as a reverse proxy, must not run unlocked.
//
// # Refusals
//
// [Respond], or the handler given to [WithErrorHandler], answers a request whose chain did not run under the lock to its
// end. A chain that has not begun is aborted.
//
//   - 409 and Retry-After: another holder still has the lock after the wait of [WithBusy]. With [WithLimit] it is 429.
//   - 503 and Retry-After: the Locker was shut down, or Redis is unavailable and [WithFailOpen] does not let the chain
//     run.
//   - 503 without Retry-After: the lock was lost while the chain ran, or a Shutdown abandoned it. If the chain has
//     written anything, or set a status other than 200, its own response stays. A bare c.Status(200) does not count:
//     write a body, or use 204.
//   - 400: the client left out the value of a part, or sent a malformed one.
//   - 413: the body is too large for [JSON].
//   - 500: a [Part] failed for a reason of its own: the route has no such parameter, or no middleware set the value.
//   - 500 with [holdfast.ErrSelfDeadlock]: the chain already holds the lock, with a higher limit; see "What the lock
//     covers".
//
// A request is also refused if its context ends during the wait, even with [WithFailOpen]: the client has gone away, or a
// deadline of an earlier middleware has passed. The status is 409 (429 with [WithLimit]) if another holder was seen, else
// 503. The error matches the context's error too.
//
// For the operator, c.Errors receives every error except those that match [holdfast.ErrNotAcquired] or
// [holdfast.ErrInvalid]. That includes a failed release, a loss after the chain has responded, and the error behind a
// request that [WithFailOpen] lets through. A loss is left out if c.Errors already has an error that matches ErrLost. A
// hook of a [Trace] replaces the entry for what it reports.
//
// # Requests without the lock
//
// To exempt requests, call the middleware from a handler of your own:
//
//	lock := ginlock.New(locker, "order", ginlock.Param("id"))
//	orders := router.Group("/orders/:id", func(c *gin.Context) {
//		if c.Request.Method != http.MethodGet {
//			lock(c)
//		}
//	})
//
// [holdfast.Held] does not find the lock in the context of such a request, nor of one that [WithFailOpen] lets through.
//
// # What the lock covers
//
// The lock covers the chain until it returns. It does not cover goroutines that a handler leaves running, with
// [gin.Context.Copy] or without: the request's context of a copy ends with the handler. Nor does it cover a hijacked
// connection after the handler that hijacked it has returned. A WebSocket handler that serves the connection until its
// end holds the lock for all that time. WithLock(holdfast.WithMaxHold(d)) bounds a hold: it ends the lock, which is then
// lost, and its context, but not the handler.
//
// A chain that already holds the lock goes on under it. This happens if the middleware is listed twice, or if
// [gin.Engine.HandleContext] runs a new chain for the same key. If the lock that the chain holds allows more holders than
// this middleware does, by [WithLimit] or [holdfast.WithShared], the request is answered with 500. Before gin v1.11, call
// c.Abort after HandleContext. Otherwise gin runs handlers of the new route again, without the middlewares of that route
// and so without its lock.
//
// # Slow clients
//
// A client keeps the lock for as long as it makes a handler last, by a slow upload or a large response that it does not
// read. The http.Server has no timeouts by default, so set them:
//
//   - ReadTimeout bounds the upload. After it, the next read of the body fails.
//   - WriteTimeout bounds the response. After it, the next write fails.
//
// With HTTP/1, a read or write that fails also ends the request's context; a handler that does neither goes on. With
// HTTP/2, WriteTimeout itself ends that context, as if the client had gone away.
//
// Both timeouts count for the whole request, including the wait for the lock. ReadHeaderTimeout and IdleTimeout do
// nothing here. For one route, set the deadlines of http.NewResponseController(c.Writer) before this middleware.
//
// # The gin.Context
//
// The context of c.Request is the lock's until the chain returns. Then it is the earlier one again, also for the error
// handler and the hooks. The gin.Context itself does not see the lock: its Done, Err and Value ignore the request unless
// the engine's ContextWithFallback is set. So Acquire(c, key) in a handler would wait forever for the handler's own lock,
// while Acquire(c.Request.Context(), key) returns [holdfast.ErrSelfDeadlock].
//
// [gin.Context.Stream] stops when the client goes away, but not when the lock is lost. Check in each step:
//
//	c.Stream(func(w io.Writer) bool {
//		if c.Request.Context().Err() != nil {
//			return false // the client is gone, or the lock is lost
//		}
//		...
//	})
func New(locker *holdfast.Locker, resource string, part Part, opts ...Option) gin.HandlerFunc {
	m := &middleware{locker: locker, target: target{resource, part}, config: defaults()}
	if err := m.configure(opts); err != nil {
		panic(err)
	}
	m.lock = append(m.lockOptions(), holdfast.WithReentrancy()) // a chain goes on under the locks that it holds
	if len(m.also) > 0 {
		return m.handleAll
	}
	return m.handle
}

type middleware struct {
	locker *holdfast.Locker
	target
	config
}

// target names what is locked: the resource, and the part that tells one of its locks from another.
type target struct {
	resource string
	part     Part
}

// configure applies opts and reports every mistake in them and in the other arguments of New.
func (m *middleware) configure(opts []Option) error {
	var wrong []string
	if m.locker == nil {
		wrong = append(wrong, "the locker is nil")
	}
	wrong = append(wrong, m.wrong()...)
	for i, o := range opts {
		if o == nil {
			wrong = append(wrong, fmt.Sprintf("option %d of %d is nil", i+1, len(opts)))
		} else if err := o.apply(&m.config); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if n := 1 + len(m.also); n > mostLocks {
		wrong = append(wrong, fmt.Sprintf("WithAlso: %d locks for one request: want at most %d", n, mostLocks))
	}
	if m.locker != nil {
		if err := m.check(); err != nil {
			wrong = append(wrong, strings.TrimPrefix(err.Error(), "holdfast: "))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return invalid("ginlock: New: %s", strings.Join(wrong, "; "))
}

func (t target) wrong() (wrong []string) {
	if t.resource == "" {
		wrong = append(wrong, "the resource is empty")
	}
	if t.part == nil {
		wrong = append(wrong, "the part is nil: Param, Query, Header, Value and JSON need a name, and Parts needs at least one part, none of them nil")
	}
	return wrong
}

// check lets the Locker check the options of the lock. It does so with the longest possible key, to find a prefix that
// leaves no room for one.
func (m *middleware) check() error {
	var opts []holdfast.Option
	for _, o := range m.lockOptions() {
		opts = append(opts, o)
	}
	return m.locker.Check(strings.Repeat("k", longestKey), opts...)
}

// invalid returns an error with a reason that matches holdfast.ErrInvalid.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }

func (m *middleware) handle(c *gin.Context) {
	if unmatched(c) {
		return
	}
	key, err := m.key(c)
	if err != nil {
		m.refuse(c, err)
		return
	}
	ctx := c.Request.Context()
	lock, err := m.locker.Acquire(ctx, key, m.lock...)
	switch {
	case err != nil:
		m.without(c, err)
	case has(ctx, lock):
		_ = lock.Release(ctx) // only this handle: the hold goes on
		c.Next()
	default:
		m.hold(c, lock.Context(ctx), func(ctx context.Context) error { return release(ctx, lock) })
	}
}

// has reports whether lock is a handle to a hold that ctx carries.
func has(ctx context.Context, lock *holdfast.Lock) bool {
	return slices.ContainsFunc(holdfast.Held(ctx), func(l *holdfast.Lock) bool { return l.Key() == lock.Key() && l.Token() == lock.Token() })
}

// unmatched reports whether the request matches no route. It then aborts the chain and leaves the answer to gin.
func unmatched(c *gin.Context) bool {
	if c.FullPath() != "" {
		return false
	}
	// gin has already set the status, and writes its default body if the aborted chain has written none.
	c.Abort()
	if c.Writer.Status() == http.StatusOK {
		c.Status(http.StatusNotFound)
	}
	return true
}

// without handles a request whose locks could not be acquired. It runs the chain without them if WithFailOpen says so.
func (m *middleware) without(c *gin.Context, err error) {
	if m.failOpen && errors.Is(err, holdfast.ErrUnavailable) && c.Request.Context().Err() == nil {
		m.tell(c, unlocked, err)
		c.Next()
		return
	}
	m.refuse(c, err)
}

// key returns the lock's key for this request.
func (t target) key(c *gin.Context) (string, error) {
	parts, err := t.part(c)
	if err != nil {
		return "", err
	}
	if len(parts) == 0 {
		return "", &keyError{what: "nothing"}
	}
	all := []string{t.resource}
	for _, p := range parts {
		if p == "" {
			// A key without it would be one lock for all such requests.
			return "", &keyError{what: "an empty value"}
		}
		all = append(all, p)
	}
	return holdfast.Key(all...), nil
}

// hold runs the rest of the chain with ctx, the context of its locks, and then releases the locks, also if the chain
// panics. The release has a bound of its own, and is detached from the request's context, which may have ended.
func (m *middleware) hold(c *gin.Context, ctx context.Context, release func(context.Context) error) {
	request, status, returned := c.Request, c.Writer.Status(), false
	defer func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), releaseBound)
		defer cancel()
		err := release(bound)
		restore(c, request)
		if err == nil {
			return
		}
		if !errors.Is(err, holdfast.ErrLost) {
			m.tell(c, unreleased, err)
			return
		}
		m.tell(c, lost, err)
		// After a panic the response belongs to the handler that recovers. Written is also true for a hijacked connection.
		if returned && !c.Writer.Written() && c.Writer.Status() == status {
			m.answer(c, err)
		}
	}()
	c.Request = request.WithContext(ctx)
	c.Next()
	returned = true
}

// release ends the hold. Its error matches holdfast.ErrLost if the lock ended before the chain did. That includes a lock
// that a Shutdown abandoned: its key is freed only now, if at all, and Lock.Release returns no error for it.
func release(ctx context.Context, lock *holdfast.Lock) error {
	ended := lock.Err()
	err := lock.Release(ctx)
	if errors.Is(ended, holdfast.ErrClosed) {
		return &abandonedError{errors.Join(ended, err)}
	}
	return err
}

// abandonedError is the loss of a lock that a Shutdown abandoned.
type abandonedError struct{ error }

func (e *abandonedError) Unwrap() error        { return e.error }
func (e *abandonedError) Is(target error) bool { return target == holdfast.ErrLost }

// restore gives c.Request its earlier context again, since the lock's has ended, and keeps whatever else the chain
// changed there.
func restore(c *gin.Context, request *http.Request) {
	if c.Request == nil {
		c.Request = request
		return
	}
	// The chain parsed a copy of the request, and net/http removes the temporary files of an upload through the
	// original.
	if c.Request.MultipartForm != nil {
		request.MultipartForm = c.Request.MultipartForm
	}
	c.Request = c.Request.WithContext(request.Context())
}

// refuse answers in place of the chain.
func (m *middleware) refuse(c *gin.Context, err error) {
	c.Abort()
	m.tell(c, refused, err)
	m.answer(c, err)
}

// answer leaves the response to the error handler, if there is one. A handler that does not respond, such as one that
// only logs, must not turn a refusal into an empty 200.
func (m *middleware) answer(c *gin.Context, err error) {
	if m.busy.lease {
		c.Set(leaseKey, true)
	}
	if m.limited {
		c.Set(limitKey, true)
	}
	if m.errorHandler != nil {
		status := c.Writer.Status()
		m.errorHandler(c, err)
		if c.Writer.Status() != status {
			return
		}
	}
	Respond(c, err)
}
