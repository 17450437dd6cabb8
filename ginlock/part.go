package ginlock

import (
	"errors"
	"fmt"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/internal/adapter/web"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

const adapter web.Adapter = "ginlock"

// keyError reports a request that does not name its lock.
type keyError = web.KeyError

var unnamed = adapter.Unnamed

// A Part takes from a request the values that name one lock of a resource, usually one string. Any function of this type
// will do: one that returns c.Request.Method and c.FullPath() gives each route of a group locks of its own.
//
// A request is refused with 400 if its Part returns no string, an empty one, or an error that matches
// [holdfast.ErrInvalid]; after any other error with 500. Values are compared byte by byte: "42" and "042" are two locks, so
// bring them into one form if the handler takes them for one.
//
// [New] refuses a nil Part, as Param("") is.
type Part func(c *gin.Context) ([]string, error)

// Param takes the value of a path parameter: Param("id") on the route /orders/:id. On a route without it every request is
// answered with 500.
func Param(name string) Part {
	return web.Named(name, func(c *gin.Context) ([]string, error) {
		v, ok := c.Params.Get(name)
		if !ok {
			return nil, adapter.Absent("Param(%q): the route %q has no such parameter: use one that it has", name, c.FullPath())
		}
		return adapter.One(v, "path parameter", name)
	})
}

// Query takes the first value of a query parameter.
func Query(name string) Part {
	return web.Named(name, func(c *gin.Context) ([]string, error) { return adapter.One(c.Query(name), "query parameter", name) })
}

// Header takes the first value of a header field; of an Idempotency-Key without the quotes that RFC 8941 puts around it.
// Combine that with the client's name, or clients could block each other, and with a resource of its own for the route:
//
//	ginlock.New(locker, "create-order", ginlock.Parts(ginlock.Value("user"), ginlock.Header("Idempotency-Key")))
func Header(name string) Part {
	return web.Named(name, func(c *gin.Context) ([]string, error) { return adapter.Header(c.Request.Header, name) })
}

// Value takes the value that an earlier middleware has set with c.Set: a string, an integer or a [fmt.Stringer]. A request
// without it gets a 500, so the earlier middleware must refuse it.
func Value(name string) Part {
	return web.Named(name, func(c *gin.Context) ([]string, error) {
		v, ok := c.Get(name)
		if !ok {
			return nil, adapter.Absent("Value(%q) is not set: put the middleware that calls c.Set(%[1]q, ...) before this one", name)
		}
		return adapter.Text(fmt.Sprintf("Value(%q)", name), v)
	})
}

// JSON takes a field of the body, which must be a JSON object: JSON("account_id") one at its top level, JSON("data",
// "account_id") one of the object in its field "data". The field is a string that is not empty, or a number, taken as it
// is written (-0 as 0): 42 and "42" are the same, 42 and 42.0 are not, so do not read it as a float. Each name must occur
// once, in whatever case: encoding/json could give the handler another value than the lock's.
//
// A body without such a field is refused with 400, and one above 1 MiB, or the limit of an earlier [http.MaxBytesReader],
// with 413 and an [*http.MaxBytesError]. The body is read before the lock is taken, and the handler can read it again. An
// earlier middleware must unpack a compressed body, and leave the body readable or use [gin.Context.ShouldBindBodyWith].
func JSON(path ...string) Part { return Body(adapter.JSON(path)) }

// Body takes what take returns for the body, which is read as by [JSON], and which take must not change.
func Body(take func(body []byte) ([]string, error)) Part { return web.Body(body, take) }

// errGone is the error of a body that was still being read when c was given to another request, see call. Nothing reports it.
var errGone = errors.New("ginlock: the request was answered while its body was read")

func body(c *gin.Context) ([]byte, error) {
	if v, ok := c.Get(gin.BodyBytesKey); ok { // from ShouldBindBodyWith, which the handler uses too
		if b, ok := v.([]byte); ok {
			return adapter.Fits(b)
		}
	}
	request := c.Request
	read, err := adapter.Body(request)
	if c.Request != request {
		return nil, errGone
	}
	return read, err
}

// Parts takes the values of all parts, in their order: Parts(Param("tenant"), Param("id")) makes holdfast.Key(resource,
// tenant, id).
func Parts(parts ...Part) Part { return wiring.Parts(parts) }
