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

// maxBody is the largest body that JSON reads, in bytes. The body stays in memory while the request waits and runs.
const maxBody = 1 << 20

// JSON takes a field at the top level of the body, which must be a JSON object. The field is a string that is not empty, or
// a number, which is taken as it is written. So 42 and "42" are the same, and 42 and 42.0 are not. The handler can still
// read the whole body.
//
// The request is refused with 400 if the body is not a JSON object or does not arrive in full, or if the field is missing,
// empty or of another type. A body above 1 MiB is refused with 413, and so is one that an [http.MaxBytesReader] of an
// earlier middleware cuts short. The error of a 413 matches [*http.MaxBytesError].
//
// The value is the one that encoding/json finds: if the name occurs several times, the last one. A field whose name differs
// only in case is refused with 400. encoding/json stores it in the same field of a struct, so a client could name one thing
// to the lock and another to the handler. For the same reason the handler must read the field as an integer or a string. To
// a float, 42 and 42.0 are the same.
//
// The body is read before the lock is taken, whatever its Content-Type says, so a slow upload does not keep others waiting.
// Bound the upload with the http.Server's ReadTimeout. A compressed body must be unpacked by an earlier middleware. An
// earlier middleware that reads the body must leave it readable, or use [gin.Context.ShouldBindBodyWith]. Otherwise the
// request is answered with 500, and c.Errors says why.
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
	if v, ok := c.Get(gin.BodyBytesKey); ok { // from ShouldBindBodyWith, which the handler uses too
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
		return nil, errors.New("ginlock: JSON: the body has already been read: put the middleware that reads it after this one, or have it use ShouldBindBodyWith")
	case err != nil:
		return nil, &keyError{what: "a body that did not arrive in full", cause: err}
	case len(read) > maxBody:
		return nil, tooLarge(&http.MaxBytesError{Limit: maxBody})
	}
	return read, nil
}

func tooLarge(err error) error { return &keyError{what: "a body that is too large", cause: err} }

// replay is a body that has been read in part. It returns that part again, and then the rest. If an error ended the reading,
// it returns that error instead of the rest, because not every reader returns its error twice.
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

// field returns a field of the JSON object in body. It goes through the tokens: a map of an object with very many fields
// would take many times the memory of the body.
func field(body []byte, name string) ([]string, error) {
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		return nil, &keyError{what: fmt.Sprintf("no body, so no field %q", name)}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, _ := d.Token(); t != json.Delim('{') || !json.Valid(body) { // Valid also checks what follows the object
		return nil, &keyError{what: "a body that is not a JSON object"}
	}
	var value, other json.RawMessage
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, &keyError{what: "a body that is not a JSON object", cause: err}
		}
		into := &other
		if key == name {
			into = &value
		} else if strings.EqualFold(key.(string), name) {
			return nil, &keyError{what: fmt.Sprintf("a field %q in its body; only %q is allowed", key, name)}
		}
		if err := d.Decode(into); err != nil {
			return nil, &keyError{what: "a body that is not a JSON object", cause: err}
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
		return nil, &keyError{what: "a body that is not a JSON object", cause: err}
	}
	if s == "" {
		return nil, &keyError{what: fmt.Sprintf("an empty field %q in its body", name)}
	}
	return []string{s}, nil
}
