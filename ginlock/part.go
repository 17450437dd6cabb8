package ginlock

import (
	"fmt"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

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
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		v, ok := c.Params.Get(name)
		if !ok {
			return nil, absent("ginlock: Param(%q): the route %q has no such parameter: use one that it has", name, c.FullPath())
		}
		return one(v, "path parameter", name)
	}
}

// Query takes the first value of a query parameter.
func Query(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		return one(c.Query(name), "query parameter", name)
	}
}

// Header takes the first value of a header field; of an Idempotency-Key without the quotes that RFC 8941 puts around it.
// Combine that with the client's name, or clients could block each other, and with a resource of its own for the route:
//
//	ginlock.New(locker, "create-order", ginlock.Parts(ginlock.Value("user"), ginlock.Header("Idempotency-Key")))
func Header(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		v := c.GetHeader(name)
		if n := len(v); n > 1 && v[0] == '"' && v[n-1] == '"' && http.CanonicalHeaderKey(name) == "Idempotency-Key" {
			v = v[1 : n-1] // some clients leave the quotes out
		}
		return one(v, "header", name)
	}
}

// Value takes the value that an earlier middleware has set with c.Set: a string, an integer or a [fmt.Stringer]. A request
// without it gets a 500, so the earlier middleware must refuse it.
func Value(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		v, ok := c.Get(name)
		if !ok {
			return nil, absent("ginlock: Value(%q) is not set: put the middleware that calls c.Set(%[1]q, ...) before this one", name)
		}
		s, ok := text(v)
		switch {
		case !ok:
			return nil, fmt.Errorf("ginlock: Value(%q) has type %T: set a string, an integer or a fmt.Stringer", name, v)
		case s == "":
			return nil, absent("ginlock: Value(%q) is an empty %T: refuse such requests before this middleware", name, v)
		}
		return []string{s}, nil
	}
}

// Parts takes the values of all parts, in their order: Parts(Param("tenant"), Param("id")) makes holdfast.Key(resource,
// tenant, id).
func Parts(parts ...Part) Part { return wiring.Parts(parts) }

func one(value, kind, name string) ([]string, error) {
	if value == "" {
		return nil, wiring.Absent(&keyError{what: fmt.Sprintf("no %s %q", kind, name)})
	}
	return []string{value}, nil
}

func absent(format string, args ...any) error { return wiring.Absent(fmt.Errorf(format, args...)) }

// text reports false for a type without a text of its own: a pointer's would differ from request to request.
func text(v any) (string, bool) {
	if s, ok := v.(fmt.Stringer); ok {
		return s.String(), true
	}
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.String, r.CanInt(), r.CanUint():
		return fmt.Sprint(v), true
	}
	return "", false
}

// keyError reports a request that does not name its lock. It matches holdfast.ErrInvalid.
// The client is shown what, but not cause.
type keyError struct {
	what  string
	cause error // why the body could not be read, or nil
}

func unnamed(_, what string) error { return &keyError{what: what} }

func (e *keyError) Error() string {
	s := "ginlock: cannot make the lock's key: the request has " + e.what
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *keyError) Unwrap() error        { return e.cause }
func (e *keyError) Is(target error) bool { return target == holdfast.ErrInvalid }
