package ginlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// maxBody is how many bytes of a body JSON reads. As much is kept in memory while the request waits and runs.
const maxBody = 1 << 20

// JSON is a field at the top level of the body, a JSON object: a string that is not empty, or a number, which is taken as
// it is written. So 42 and "42" are the same, and 42 and 42.0 are not. The handler finds the body unread.
//
// The request is refused with 400 if the body is no JSON object, does not arrive in full, or has no such value there. A
// body above 1 MiB is refused with 413, and so is one that an [http.MaxBytesReader] in front cuts short; the error matches
// [*http.MaxBytesError].
//
// The value is the one that encoding/json finds: of several fields with the name the last one. A field whose name differs
// in case alone is refused with 400, as encoding/json stores it in the same field of a struct, and a client could name one
// thing to the lock and another to the handler. For the same reason the handler must take the value from the field as it
// is: an integer or a string, and not a float, to which 42 and 42.0 are the same.
//
// The body is read before the lock is taken, whatever its Content-Type says, so that a slow upload keeps nobody else
// waiting. Bound it by the http.Server's ReadTimeout. A compressed body must be unpacked by a middleware further out. A
// middleware that reads the body before this one must leave it readable, or use [gin.Context.ShouldBindBodyWith];
// otherwise the request is answered with 500, and c.Errors says why.
func JSON(name string) Part {
	if name == "" {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		body, err := body(c)
		if err != nil {
			return nil, err
		}
		return field(body, name)
	}
}

// body reads the body of the request and puts back what it has read.
func body(c *gin.Context) ([]byte, error) {
	if v, ok := c.Get(gin.BodyBytesKey); ok { // from ShouldBindBodyWith, as the handler's will be
		if b, ok := v.([]byte); ok {
			if len(b) > maxBody {
				return nil, tooLarge(&http.MaxBytesError{Limit: maxBody})
			}
			return b, nil
		}
	}
	original := c.Request.Body
	if original == nil {
		return nil, nil
	}
	read, err := io.ReadAll(io.LimitReader(original, maxBody+1))
	if len(read) > 0 || err != nil {
		c.Request.Body = &replay{unread: read, err: err, rest: original}
	}
	var cut *http.MaxBytesError
	switch {
	case errors.As(err, &cut):
		return nil, tooLarge(err)
	case errors.Is(err, http.ErrBodyReadAfterClose), err == nil && len(read) == 0 && c.Request.ContentLength > 0:
		return nil, errors.New("ginlock: JSON: the body was read before: put the middleware that reads it behind this one, or have it use ShouldBindBodyWith")
	case err != nil:
		return nil, &keyError{what: "a body that did not arrive in full", cause: err}
	case len(read) > maxBody:
		return nil, tooLarge(&http.MaxBytesError{Limit: maxBody})
	}
	return read, nil
}

func tooLarge(err error) error { return &keyError{what: "a body that is too large", cause: err} }

// replay is a body of which a part has been read: that part again, and then the error that ended the reading, if one did,
// or the rest. Not every reader returns its error twice.
type replay struct {
	unread []byte
	err    error
	rest   io.ReadCloser
}

func (r *replay) Read(p []byte) (int, error) {
	switch {
	case len(r.unread) > 0:
		n := copy(p, r.unread)
		r.unread = r.unread[n:]
		return n, nil
	case r.err != nil:
		return 0, r.err
	}
	return r.rest.Read(p)
}

func (r *replay) Close() error { return r.rest.Close() }

// field is the field of the object that body is. It goes through the tokens, as a map of an object with very many fields
// would take many times the memory of the body.
func field(body []byte, name string) ([]string, error) {
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		return nil, &keyError{what: fmt.Sprintf("no body, and so no field %q", name)}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, _ := d.Token(); t != json.Delim('{') || !json.Valid(body) { // Valid also of what is behind the object
		return nil, &keyError{what: "a body that is no JSON object"}
	}
	var value, other json.RawMessage
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, &keyError{what: "a body that is no JSON object", cause: err}
		}
		into := &other
		if key == name {
			into = &value
		} else if strings.EqualFold(key.(string), name) {
			return nil, &keyError{what: fmt.Sprintf("a field %q in its body, want %q alone", key, name)}
		}
		if err := d.Decode(into); err != nil {
			return nil, &keyError{what: "a body that is no JSON object", cause: err}
		}
	}
	switch {
	case value == nil:
		return nil, &keyError{what: fmt.Sprintf("no field %q in its body", name)}
	case value[0] == '-' || '0' <= value[0] && value[0] <= '9':
		return []string{string(value)}, nil
	case value[0] != '"':
		return nil, &keyError{what: fmt.Sprintf("a field %q in its body that is neither a string nor a number", name)}
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return nil, &keyError{what: "a body that is no JSON object", cause: err}
	}
	if s == "" {
		return nil, &keyError{what: fmt.Sprintf("an empty field %q in its body", name)}
	}
	return []string{s}, nil
}
