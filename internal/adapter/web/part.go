package web

import (
	"fmt"
	"net/http"
	"reflect"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// An Adapter is the name of a package, with which its errors begin.
type Adapter string

// Named returns take, or nil if the name of what it takes is empty.
func Named[R any](name string, take func(R) ([]string, error)) func(R) ([]string, error) {
	if name == "" {
		return nil
	}
	return take
}

// One returns a value that the client sends.
func (a Adapter) One(value, kind, name string) ([]string, error) {
	if value == "" {
		return nil, wiring.Absent(&KeyError{Adapter: a, What: fmt.Sprintf("no %s %q", kind, name)})
	}
	return []string{value}, nil
}

// Header returns the first value of a field; of an Idempotency-Key without the quotes that RFC 8941 puts around it.
func (a Adapter) Header(h http.Header, name string) ([]string, error) {
	v := h.Get(name)
	if n := len(v); n > 1 && v[0] == '"' && v[n-1] == '"' && http.CanonicalHeaderKey(name) == "Idempotency-Key" {
		v = v[1 : n-1] // some clients leave the quotes out
	}
	return a.One(v, "header", name)
}

// Text returns the text of a value that the server's own code has set, and which what names. A type without a text of its
// own is refused: a pointer's would differ from request to request.
func (a Adapter) Text(what string, v any) ([]string, error) {
	var text string
	if s, ok := v.(fmt.Stringer); ok {
		text = s.String()
	} else if r := reflect.ValueOf(v); r.Kind() == reflect.String || r.CanInt() || r.CanUint() {
		text = fmt.Sprint(v)
	} else {
		return nil, fmt.Errorf("%s: %s has type %T: set a string, an integer or a fmt.Stringer", a, what, v)
	}
	if text == "" {
		return nil, a.Absent("%s is an empty %T: refuse such requests before this middleware", what, v)
	}
	return []string{text}, nil
}

// Absent returns the error of a value that the server's own code has not set.
func (a Adapter) Absent(format string, args ...any) error {
	return wiring.Absent(fmt.Errorf(string(a)+": "+format, args...))
}

// Unnamed returns the error of a part that takes nothing, or an empty value.
func (a Adapter) Unnamed(_, what string) error { return &KeyError{Adapter: a, What: what} }

// A KeyError reports a request that does not name its lock. It matches holdfast.ErrInvalid. The client is shown What, but
// not Cause.
type KeyError struct {
	Adapter Adapter
	What    string
	Cause   error // why the body could not be read, or nil
}

func (e *KeyError) Error() string {
	s := string(e.Adapter) + ": cannot make the lock's key: the request has " + e.What
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *KeyError) Unwrap() error        { return e.Cause }
func (e *KeyError) Is(target error) bool { return target == holdfast.ErrInvalid }
