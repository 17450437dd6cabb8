package ginlock

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// A Part takes from a request the values that name one lock of a resource, usually one string. It runs before the lock is
// taken. A handler that needs the same value can call the Part too, a [JSON] one before it reads the body.
//
// Any function of this type will do. The following one makes the route a piece of the key, as in Parts(route,
// Header(name)), so that each route of a group has locks of its own:
//
//	func route(c *gin.Context) ([]string, error) { return []string{c.Request.Method, c.FullPath()}, nil }
//
// If a Part returns no string, or an empty one, the request is refused with 400. So is a request whose Part returns an
// error that matches [holdfast.ErrInvalid]. Any other error is answered with 500.
//
// Values are compared byte by byte: "42" and "042" are two orders to the lock. If the handler takes them for one, use a
// Part that brings them into one form.
//
// A nil Part is a mistake that [New] reports. [Param], [Query], [Header], [Value] and [JSON] return nil for an empty
// name. [Parts] returns nil if it is given no parts, or a nil one.
type Part func(c *gin.Context) ([]string, error)

// Param takes the value of a path parameter: Param("id") on the route /orders/:id. If the route has no such parameter,
// every request is answered with 500, and c.Errors says so: no client can fix that.
func Param(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		v, ok := c.Params.Get(name)
		if !ok {
			return nil, fmt.Errorf("ginlock: Param(%q): the route %q has no such parameter: use one that it has", name, c.FullPath())
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

// Header takes the first value of a header field.
//
// The field Idempotency-Key is a string of RFC 8941: it is quoted, and taken without its quotes and escapes. A value
// without any quotes, which clients also send, is taken as it is. Any other value is malformed, and so is a second one.
//
// A client chooses its Idempotency-Key freely, so it could block another client that chose the same one. Combine the key
// with the client's name, and use a resource of its own for the route:
//
//	ginlock.New(locker, "create-order", ginlock.Parts(ginlock.Value("user"), ginlock.Header("Idempotency-Key")))
func Header(name string) Part {
	if name == "" {
		return nil
	}
	name = http.CanonicalHeaderKey(name)
	if name == "Idempotency-Key" {
		return idempotencyKey
	}
	return func(c *gin.Context) ([]string, error) {
		return one(c.GetHeader(name), "header", name)
	}
}

// Value takes the value that an earlier middleware has set with c.Set: a string, an integer or a [fmt.Stringer].
//
// A value that is missing, empty or of another type is a mistake in the server. The request is answered with 500, and
// c.Errors says what to do. So a middleware that authenticates must refuse requests itself. Other types are refused
// because they have no text of their own, and a pointer's would differ from request to request.
func Value(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		v, ok := c.Get(name)
		if !ok {
			return nil, fmt.Errorf("ginlock: Value(%q) is not set: put the middleware that calls c.Set(%[1]q, ...) before this one", name)
		}
		s, ok := text(v)
		switch {
		case !ok:
			return nil, fmt.Errorf("ginlock: Value(%q) has type %T: set a string, an integer or a fmt.Stringer", name, v)
		case s == "":
			return nil, fmt.Errorf("ginlock: Value(%q) is an empty %T: refuse such requests before this middleware", name, v)
		}
		return []string{s}, nil
	}
}

// Parts takes the values of all parts, in their order: Parts(Param("tenant"), Param("id")) makes holdfast.Key(resource,
// tenant, id).
func Parts(parts ...Part) Part {
	if len(parts) == 0 || slices.ContainsFunc(parts, func(p Part) bool { return p == nil }) {
		return nil
	}
	parts = slices.Clone(parts)
	return func(c *gin.Context) ([]string, error) {
		var all []string
		for _, p := range parts {
			s, err := p(c)
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
		return all, nil
	}
}

func one(value, kind, name string) ([]string, error) {
	if value == "" {
		return nil, &keyError{what: fmt.Sprintf("no %s %q", kind, name)}
	}
	return []string{value}, nil
}

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

// keyError reports a request that does not name its lock, or names it in a malformed way. It matches holdfast.ErrInvalid.
// The client is shown what, but not cause.
type keyError struct {
	what  string
	cause error // why the body could not be read, or nil
}

func (e *keyError) Error() string {
	s := "ginlock: cannot make the lock's key: the request has " + e.what
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *keyError) Unwrap() error        { return e.cause }
func (e *keyError) Is(target error) bool { return target == holdfast.ErrInvalid }

var errMalformedKey = &keyError{what: `a malformed Idempotency-Key, want a quoted string (RFC 8941, 3.3.3)`}

func idempotencyKey(c *gin.Context) ([]string, error) {
	values := c.Request.Header.Values("Idempotency-Key")
	if len(values) > 1 {
		return nil, errMalformedKey
	}
	value := strings.Trim(strings.Join(values, ""), " \t")
	if strings.ContainsRune(value, '"') {
		s, ok := unquote(value)
		if !ok {
			return nil, errMalformedKey
		}
		value = s
	}
	return one(value, "header", "Idempotency-Key")
}

// unquote reads an sf-string of RFC 8941, section 3.3.3, that makes up all of s:
//
//	sf-string = DQUOTE *( unescaped / "\" ( DQUOTE / "\" ) ) DQUOTE
//	unescaped = %x20-21 / %x23-5B / %x5D-7E
//
// It refuses parameters after the string (";a=1"). None is defined for this field, and ignoring one that means something
// to the client would be wrong.
func unquote(s string) (string, bool) {
	if s[0] != '"' {
		return "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), i == len(s)-1
		case c < ' ' || c > '~':
			return "", false
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", false
}
