package httplock

import (
	"cmp"
	"context"
	"net/http"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/web"
)

// Middleware returns a middleware that runs a handler under the lock holdfast.Key(resource, parts...), where part takes the
// parts from the request. It panics if an argument or an option is wrong, or contradicts another one or the locker's, with
// an error that names each mistake and matches [holdfast.ErrInvalid].
//
// Put it around the handlers of routes, behind the mux that finds them. A handler that already holds the lock goes on under
// it, as where a middleware is listed twice.
//
// The ResponseWriter of the handler has Flush, Hijack, ReadFrom and Unwrap, and works with [http.ResponseController].
func Middleware(locker *holdfast.Locker, resource string, part Part, opts ...Option) func(http.Handler) http.Handler {
	wait := web.DefaultWait
	e := web.Configure(&web.Engine[*http.Request]{Adapter: adapter, Locker: locker, Standard: &logTrace, Config: config{
		Targets: []target{{Resource: resource, Part: part}}, Wait: &wait,
	}}, "Middleware", opts, Option.apply)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := &call{w: track(w), r: r, made: r, next: next}
			e.Serve(c)
			if c.silent && c.w.written { // the lock was lost, and that is the answer
				c.w.ResponseWriter = ended(c.w.Header())
			}
		})
	}
}

// Transport returns a RoundTripper that sends a request under the lock that part names, through base, or
// [http.DefaultTransport] if that is nil. With [WithLimit](n), at most n calls for a key are under way at a time, from all
// replicas together:
//
//	client := &http.Client{Transport: httplock.Transport(locker, "api", httplock.Host, nil, httplock.WithLimit(20))}
//
// The lock is held until the response's body is closed, or read to its end, until base returns an error, or until the
// request's context ends. A body that is forgotten keeps the lock until it is garbage collected;
// WithLock(holdfast.WithMaxHold(d)) ends that sooner. The end of a call waits for the release.
//
// A request that does not get its lock within the wait of [WithBusy] is not sent, and the error is one of the table in the
// package's description. If the lock is lost, the call or the reading of its response fails with an error that matches
// [holdfast.ErrLost]. With [WithFailOpen] a call waits for its turn, but for a Redis that does not answer for 1 s, and no
// more than 10 ms once that has been silent for so long. One that is waiting already notices within a TTL.
//
// It panics as Middleware does, also with [WithErrorHandler] or [Policy.RetryAfterLease].
func Transport(locker *holdfast.Locker, resource string, part Part, base http.RoundTripper, opts ...Option) http.RoundTripper {
	return &web.Transport{Base: cmp.Or(base, http.DefaultTransport), Engine: web.Configure(&web.Engine[*http.Request]{
		Adapter: adapter, Locker: locker, Standard: &callTrace, Outwards: true, Config: config{Targets: []target{{Resource: resource, Part: part}}},
	}, "Transport", opts, Option.apply)}
}

// call is one request on its way to a handler.
type call struct {
	w       *writer
	r, made *http.Request // as it came, and for the handler
	next    http.Handler
	silent  bool // the handler returned and had written nothing
}

func (c *call) From() *http.Request      { return c.r }
func (c *call) Context() context.Context { return c.r.Context() }
func (c *call) Writer() web.Writer       { return c.w }
func (c *call) Ours() bool               { return true }
func (c *call) Set(ctx context.Context)  { c.made = c.r.WithContext(ctx) }
func (c *call) Abort()                   {}

func (c *call) Next() {
	c.next.ServeHTTP(c.w, c.made)
	c.silent = !c.w.written
}

// Back notes an upload that the handler has parsed: net/http removes its temporary files through the original request.
func (c *call) Back() bool {
	if c.made.MultipartForm != nil {
		c.r.MultipartForm = c.made.MultipartForm
	}
	return true
}

// Respond answers err by the table in the package's description, unless something has already been written, as far as w
// tells. The body is problem details (RFC 9457), which name neither the key nor
// the holder. Retry-After is 5 s with a 503, and 1 s with a 409 or 429 unless [Policy.RetryAfterLease] is set.
//
// A handler can call Respond too, with the error of another lock or of a fence. Once the lock of r.Context() is lost, Respond
// answers that, whatever err is: a driver may report it as context.Canceled.
func Respond(w http.ResponseWriter, r *http.Request, err error) {
	web.Respond(r.Context(), track(w), err)
}
