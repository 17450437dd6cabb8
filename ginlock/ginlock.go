package ginlock

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// releaseBound is how long the end of a response may wait for Redis to confirm the release.
const releaseBound = time.Second

// New returns a middleware that runs the rest of the chain under the lock holdfast.Key(resource, parts...), where part
// takes the parts from the request. It panics if an argument or an option is wrong, or contradicts another one or the
// locker's, with an error that names each mistake and matches [holdfast.ErrInvalid].
//
// Put the middleware on routes or groups. With router.Use, a request that matches no route gets gin's own 404 or 405, and
// no NoRoute or NoMethod handler runs, since nothing names its lock. To exempt requests, call the middleware from a
// handler of your own.
//
// A chain that already holds the lock goes on under it, as in [gin.Engine.HandleContext]. Before gin v1.11, call c.Abort
// after HandleContext, or gin runs handlers of the new route again, without its lock.
//
// When the chain has returned, c.Request has its earlier context again, also for error handlers and hooks.
func New(locker *holdfast.Locker, resource string, part Part, opts ...Option) gin.HandlerFunc {
	m := &middleware{locker: locker, config: config{targets: []target{{Resource: resource, Part: part}}, busy: Wait(defaultWait)}}
	for i, o := range opts {
		if o == nil {
			m.mistakes.Refuse("option %d of %d is nil", i+1, len(opts))
			continue
		}
		o.apply(&m.config)
	}
	if m.busy.wait < 0 {
		m.mistakes.Refuse("WithBusy(Wait(%v)): negative", m.busy.wait)
	}
	wiring.Judge(&m.mistakes, locker, m.targets, m.lock, m.share)
	if err := m.mistakes.Err("ginlock: New"); err != nil {
		panic(err)
	}
	m.lock = append(m.lock, holdfast.WithWait(m.busy.wait), holdfast.WithReentrancy()) // a chain goes on under its locks
	return m.handle
}

type middleware struct {
	locker *holdfast.Locker
	config
}

// target names what is locked.
type target = wiring.Target[*gin.Context]

func (m *middleware) handle(c *gin.Context) {
	if unmatched(c) {
		return
	}
	locks, err := wiring.Named(m.targets, m.share, c, unnamed)
	if err != nil {
		m.refuse(c, err)
		return
	}
	request, ran := c.Request, false
	err = m.locker.DoAll(request.Context(), locks.Keys, func(ctx context.Context) error {
		if c.Request == request { // otherwise c belongs to another request by now, see hold
			ran = true
			m.hold(c, ctx)
		}
		return nil
	}, locks.Options(m.lock...)...)
	if !ran && c.Request == request {
		m.without(c, err)
	}
}

// unmatched reports whether the request matches no route. It then aborts the chain and leaves the answer to gin: a NoRoute
// handler that does real work, such as a reverse proxy, must not run unlocked.
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

// hold runs the rest of the chain with ctx, the context of its locks, and then releases the locks, also if the chain
// panics. The release has a bound of its own, and is detached from the request's context, which may have ended.
//
// A timeout middleware in front may have returned meanwhile. Then gin has given c to another request, which must not see
// anything of this one: c is left alone unless its request still has the context that is set here.
func (m *middleware) hold(c *gin.Context, ctx context.Context) {
	request, status, returned := c.Request, c.Writer.Status(), false
	defer func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), releaseBound)
		defer cancel()
		err := release(bound, holdfast.Taken(ctx))
		if !of(request, c.Request) {
			return
		}
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
	c.Request = request.WithContext(context.WithValue(ctx, origin{request}, true))
	c.Next()
	returned = true
}

// origin is the key, in the context of a request that hold made, that tells which one it was made of.
type origin struct{ *http.Request }

// of reports whether made is the request that hold made of request, or one that the chain made of that.
func of(request, made *http.Request) bool {
	return made != nil && made.Context().Value(origin{request}) != nil
}

// release releases all locks at the same time, since each release is a round trip. DoAll, which would release them with the
// request's context, finds that done.
func release(ctx context.Context, locks []*holdfast.Lock) error {
	var all sync.WaitGroup
	errs, panics := make([]error, len(locks)), make(chan any, len(locks))
	for i, lock := range locks {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil { // in a hook: passed on to the request's Recovery
					panics <- p
				}
			}()
			errs[i] = lock.Release(ctx)
		})
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
		return errors.Join(errs...)
	}
}

// restore gives c.Request its earlier context again, since the lock's has ended, and keeps whatever else the chain
// changed there.
func restore(c *gin.Context, request *http.Request) {
	// The chain parsed a copy of the request, and net/http removes the temporary files of an upload through the
	// original.
	if c.Request.MultipartForm != nil {
		request.MultipartForm = c.Request.MultipartForm
	}
	c.Request = c.Request.WithContext(request.Context())
}

// refuse answers in place of the chain.
func (m *middleware) refuse(c *gin.Context, err error) {
	if errors.Is(err, errGone) {
		return
	}
	c.Abort()
	m.tell(c, refused, err)
	m.answer(c, err)
}

// answer leaves the response to the error handler, if there is one. A handler that does not respond, such as one that
// only logs, must not turn a refusal into an empty 200.
func (m *middleware) answer(c *gin.Context, err error) {
	c.Set(refusedKey, &m.config)
	if m.errorHandler != nil {
		status := c.Writer.Status()
		m.errorHandler(c, err)
		if c.Writer.Status() != status {
			return
		}
	}
	Respond(c, err)
}
