package ginlock

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/web"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// target names what is locked.
type target = wiring.Target[*gin.Context]

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
	wait := web.DefaultWait
	e := web.Configure(&web.Engine[*gin.Context]{Adapter: adapter, Locker: locker, Standard: &errorsTrace, Config: config{
		Targets: []target{{Resource: resource, Part: part}}, Wait: &wait,
	}}, "New", opts, Option.apply)
	return func(c *gin.Context) {
		if !unmatched(c) {
			e.Serve(&call{c, c.Request, c.Request.Context()})
		}
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

// call is one request in gin. A timeout middleware in front of ours may return before the chain. Then gin gives c to another
// request: c is left alone unless it still has the request that came, or one that was made of it here.
type call struct {
	c       *gin.Context
	request *http.Request
	ctx     context.Context
}

func (g *call) From() *gin.Context       { return g.c }
func (g *call) Context() context.Context { return g.ctx }
func (g *call) Writer() web.Writer       { return g.c.Writer }
func (g *call) Ours() bool               { return g.c.Request == g.request }
func (g *call) Next()                    { g.c.Next() }
func (g *call) Abort()                   { g.c.Abort() }

func (g *call) Set(ctx context.Context) {
	g.c.Request = g.request.WithContext(context.WithValue(ctx, origin{g.request}, true))
}

// Back keeps whatever else the chain changed on the request.
func (g *call) Back() bool {
	made := g.c.Request
	if made == nil || made.Context().Value(origin{g.request}) == nil {
		return false
	}
	// The chain parsed a copy of the request, and net/http removes the temporary files of an upload through the
	// original.
	if made.MultipartForm != nil {
		g.request.MultipartForm = made.MultipartForm
	}
	g.c.Request = made.WithContext(g.ctx)
	return true
}

// origin is the key, in the context of a request that Set made, that tells which one it was made of.
type origin struct{ *http.Request }

// Respond answers err by the table in the package's description, unless something has already been written. The body is
// problem details (RFC 9457), which name neither the key nor the holder. Retry-After is 5 s with a 503, and 1 s with a
// 409 or 429 unless [Policy.RetryAfterLease] is set.
//
// A handler can call Respond too, with the error of another lock or of a fence:
//
//	if err := fence.WithTx(c.Request.Context(), db, nil, pay); err != nil {
//		_ = c.Error(err) // the middleware adds the loss, unless err matches ErrLost
//		ginlock.Respond(c, err)
//		return
//	}
//
// Once the lock of c.Request.Context() is lost, Respond answers that, whatever err is: a driver may report it as
// context.Canceled. sqlfence.ErrStale matches ErrLost. If the handler does nothing else, nothing was written, and 409
// will do.
func Respond(c *gin.Context, err error) {
	ctx := context.Background()
	if c.Request != nil {
		ctx = c.Request.Context()
	}
	web.Respond(ctx, c.Writer, err)
}
