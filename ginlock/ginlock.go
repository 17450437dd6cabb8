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

	// mostLocks is what DoAll takes.
	mostLocks = 64
)

// New returns a middleware that runs the rest of the chain under the lock holdfast.Key(resource, parts...), with the parts
// that part takes from the request. Everything else that locks the same key of the same Redis is kept out: another route,
// a task, a cron job.
//
// New panics on a mistake in the calling code: a nil or empty argument, an option that can never work, or options that
// cannot work together or with those of the locker, such as a WithMaxHold below the TTL. The panic's value is an error that
// names each mistake and matches [holdfast.ErrInvalid]. No other function of this package panics.
//
// # Refusals
//
// [Respond], or the handler given to [WithErrorHandler], answers a request whose chain did not run under the lock to its end. A
// chain that has not begun is aborted.
//
//   - 409 and Retry-After when another holder still has the lock after the wait of [WithBusy]; 429 with [WithLimit];
//   - 503 and Retry-After when Redis cannot be reached, unless [WithFailOpen] lets the chain run; and when the Locker was
//     shut down;
//   - 503 when the lock was lost while the chain ran, or a Shutdown gave it up, and the chain has neither written anything
//     nor set a status other than 200; otherwise the response stays as the chain made it;
//   - 400 when the client has left out the value of a part, or sent a malformed one; 413 when its body is too large for
//     [JSON];
//   - 500 when a [Part] failed for a reason of its own: the route has no such parameter, or no middleware set the value; and
//     with [holdfast.ErrSelfDeadlock] when the request shares the lock already, and is to have it alone, see below.
//
// Every error but a 409, a 429, a 400 and a 413 is also added to c.Errors, where the operator finds it. So are a failed
// release and a loss behind a complete response, unless the handler has added an error that matches ErrLost. A hook of a
// [Trace] replaces that for what it hears of.
//
// A request whose context ends while it waits, as its client has gone away or a middleware in front has set a deadline, is
// refused, also with [WithFailOpen]: with 409, or 429 with [WithLimit], if another holder was seen, else with 503. The error
// matches the context's too.
//
// Put the middleware on routes or groups. Given to router.Use, it also sees requests that match no route. They get gin's own
// 404 or 405 without a lock, and the NoRoute and NoMethod handlers do not run: such a request has no parameters to name a lock
// by, and a NoRoute handler may do real work, such as a reverse proxy's, that must not run unlocked.
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
// [holdfast.Held] finds nothing in the context of such a request, nor of one that [WithFailOpen] lets through.
//
// # What the lock covers
//
// The lock covers the chain until it returns. It does not cover goroutines that a handler leaves behind, with
// [gin.Context.Copy] or without; the request's context of a copy ends with the handler. Nor does it cover a hijacked connection
// after the handler that hijacked it has returned. A WebSocket handler that serves the connection until its end keeps the lock
// for all that time. WithLock(holdfast.WithMaxHold(d)) bounds a hold: it ends the lock, which is then lost, and its context,
// not the handler.
//
// A chain that already runs under the very lock goes on under it, unless others may have it too, by [WithLimit], and this
// middleware wants it alone: then the answer is 500. It runs under the very lock when the middleware is listed twice, and when
// [gin.Engine.HandleContext] runs a new chain for the same key. Before gin v1.11 call c.Abort after HandleContext: gin
// would run handlers of the new route again, without the middlewares of that route, and so without its lock.
//
// # Slow clients
//
// A client keeps the lock for as long as it makes a handler last, by an upload that drips or a large response that it does
// not read. The http.Server has no time-outs by default; set them. ReadTimeout bounds the upload, whose next read then
// fails. WriteTimeout bounds the response, whose next write then fails. Both count for the whole of the request, the wait for
// the lock included. Neither ends its context, but for WriteTimeout with HTTP/2, which ends it as a client does that goes
// away. ReadHeaderTimeout and IdleTimeout do nothing here. For one route, set the deadlines of
// http.NewResponseController(c.Writer) before this middleware.
//
// # The gin.Context
//
// The lock's context is that of c.Request until the chain returns. Then c.Request has the context from before again, also for
// the error handler and the hooks. The gin.Context itself sees nothing of the lock: its Done, Err and Value ignore the request
// unless the engine's ContextWithFallback is set. So Acquire(c, key) in a handler would wait for the handler's own lock for
// ever, where Acquire(c.Request.Context(), key) returns [holdfast.ErrSelfDeadlock]. [gin.Context.Stream] watches for the client
// alone, and each step has to look by itself:
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
	m.lock = append(m.lockOptions(), holdfast.WithReentrancy()) // a chain goes on under the locks that it has
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

// target is what a lock is of: the resource, and the part that tells one of it from the others.
type target struct {
	resource string
	part     Part
}

// configure applies opts and reports all that is wrong with them and with the other arguments of New.
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
		wrong = append(wrong, fmt.Sprintf("WithAlso makes it %d locks of a request: want at most %d", n, mostLocks))
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
		wrong = append(wrong, "the part is nil: Param, Query, Header, Value and JSON want a name, and Parts at least one part and none that is nil")
	}
	return wrong
}

// check has the Locker judge the options of the lock. The key is as long as one can get, so that a prefix that leaves no
// room for it is found as well.
func (m *middleware) check() error {
	var opts []holdfast.Option
	for _, o := range m.lockOptions() {
		opts = append(opts, o)
	}
	return m.locker.Check(strings.Repeat("k", longestKey), opts...)
}

// invalid is a holdfast.ErrInvalid with its reason.
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
		_ = lock.Release(ctx) // of a handle: the hold goes on
		c.Next()
	default:
		m.hold(c, lock.Context(ctx), func(ctx context.Context) error { return release(ctx, lock) })
	}
}

// has tells whether lock is a handle to a hold that ctx carries.
func has(ctx context.Context, lock *holdfast.Lock) bool {
	return slices.ContainsFunc(holdfast.Held(ctx), func(l *holdfast.Lock) bool { return l.Key() == lock.Key() && l.Token() == lock.Token() })
}

// unmatched answers a request that has no route.
func unmatched(c *gin.Context) bool {
	if c.FullPath() != "" {
		return false
	}
	// gin has set the status already and writes its default body when the aborted chain has not.
	c.Abort()
	if c.Writer.Status() == http.StatusOK {
		c.Status(http.StatusNotFound)
	}
	return true
}

// without is for a request that could not have its locks.
func (m *middleware) without(c *gin.Context, err error) {
	if m.failOpen && errors.Is(err, holdfast.ErrUnavailable) && c.Request.Context().Err() == nil {
		m.tell(c, unlocked, err)
		c.Next()
		return
	}
	m.refuse(c, err)
}

// key is the lock's key for this request.
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

// hold runs the rest of the chain with ctx, that of its locks, and releases them, also when the chain panics. The release is
// bounded, and detached from the request, which may be over.
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
		// After a panic the response belongs to the handler that recovers. Written is also true of a hijacked
		// connection.
		if returned && !c.Writer.Written() && c.Writer.Status() == status {
			m.answer(c, err)
		}
	}()
	c.Request = request.WithContext(ctx)
	c.Next()
	returned = true
}

// release ends the hold. Its error matches holdfast.ErrLost wherever
// the lock's context ended before the chain did, also when a Shutdown did that: that frees the key, if at all,
// only now, and without an error.
func release(ctx context.Context, lock *holdfast.Lock) error {
	ended := lock.Err()
	err := lock.Release(ctx)
	if errors.Is(ended, holdfast.ErrClosed) {
		return &abandonedError{errors.Join(ended, err)}
	}
	return err
}

// abandonedError is the loss of a lock that a Shutdown gave up.
type abandonedError struct{ error }

func (e *abandonedError) Unwrap() error        { return e.error }
func (e *abandonedError) Is(target error) bool { return target == holdfast.ErrLost }

// restore takes the lock's context, which has ended, out of the request again and leaves alone what else the
// chain changed there.
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

// answer leaves the response to the error handler, if there is one. One that does nothing about it, logging
// say, must not turn a refusal into an empty 200.
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
