package httplock

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast/internal/adapter/web"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

const adapter web.Adapter = "httplock"

// A Part takes from a request the values that name one lock of a resource. Any function of this type
// will do.
//
// A request is refused with 400 if its Part returns no string, an empty one, or an error that matches
// [holdfast.ErrInvalid]; after any other error with 500. Values are compared byte by byte: "42" and "042" are two locks.
//
// [Middleware] and [Transport] refuse a nil Part, as Path("") is.
type Part func(r *http.Request) ([]string, error)

// Path takes [http.Request.PathValue]: Path("id") of the pattern "POST /orders/{id}". A request whose pattern has no such
// value is answered with 500; so is every one in front of the mux, which finds the pattern, and behind a router that does not
// call [http.Request.SetPathValue], as that of Echo before v5: let a middleware in front call it. Use the value as PathValue
// has it: in chi and Echo it can be escaped, and a handler that unescapes "%34%32" has 42, which is another lock.
func Path(name string) Part {
	return web.Named(name, func(r *http.Request) ([]string, error) {
		v := r.PathValue(name)
		if v == "" && !regexp.MustCompile(`\{`+regexp.QuoteMeta(name)+`(}|:|\.\.\.)|:`+regexp.QuoteMeta(name)+`(/|$)`).MatchString(r.Pattern) {
			return nil, adapter.Absent("Path(%q): the pattern %q has no such value: use one that it has, and put the middleware behind the mux", name, r.Pattern)
		}
		return adapter.One(v, "path value", name)
	})
}

// Query takes the first value of a query parameter.
func Query(name string) Part {
	return web.Named(name, func(r *http.Request) ([]string, error) {
		return adapter.One(r.URL.Query().Get(name), "query parameter", name)
	})
}

// Header takes the first value of a header field; of an Idempotency-Key without the quotes that RFC 8941 puts around it.
// Combine that with the client's name, or clients could block each other, and with a resource of its own for the route.
func Header(name string) Part {
	return web.Named(name, func(r *http.Request) ([]string, error) { return adapter.Header(r.Header, name) })
}

// Host takes the host that the request goes to, with its port if the URL names one, in lower case. It is for [Transport].
func Host(r *http.Request) ([]string, error) {
	return adapter.One(strings.ToLower(r.URL.Host), "host in its", "URL")
}

// Context takes the value that an earlier middleware has put into the request's context under key: a string, an integer or
// a [fmt.Stringer]. A request without it gets a 500, so the earlier middleware must refuse it.
func Context(key any) Part {
	if key == nil {
		return nil
	}
	return func(r *http.Request) ([]string, error) {
		v := r.Context().Value(key)
		if v == nil {
			return nil, adapter.Absent("Context(%#v) is not set: put the middleware that sets it before this one", key)
		}
		return adapter.Text(fmt.Sprintf("Context(%#v)", key), v)
	}
}

// JSON takes a field of the body, which must be a JSON object: JSON("account_id") one at its top level, JSON("data",
// "account_id") one of the object in its field "data". The field is a string that is not empty, or a number, taken as it
// is written (-0 as 0): 42 and "42" are the same, 42 and 42.0 are not, so do not read it as a float. Each name must occur
// once, in whatever case: encoding/json could give the handler another value than the lock's.
//
// A body without such a field is refused with 400, and one above 1 MiB, or the limit of an earlier [http.MaxBytesReader],
// with 413 and an [*http.MaxBytesError]. The body is read before the lock is taken, and the handler can read it again. An
// earlier middleware must unpack a compressed body.
func JSON(path ...string) Part { return Body(adapter.JSON(path)) }

// Body takes what take returns for the body, which is read as by [JSON], and which take must not change.
func Body(take func(body []byte) ([]string, error)) Part { return web.Body(adapter.Body, take) }

// Parts takes the values of all parts, in their order: Parts(Path("tenant"), Path("id")) makes holdfast.Key(resource,
// tenant, id).
func Parts(parts ...Part) Part { return wiring.Parts(parts) }
