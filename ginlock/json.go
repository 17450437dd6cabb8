package ginlock

import (
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/internal/adapter/jsonfield"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// maxBody is the largest body that Body reads, in bytes. The body stays in memory while the request waits and runs.
const maxBody = 1 << 20

// JSON takes a field of the body, which must be a JSON object: JSON("account_id") one at its top level, JSON("data",
// "account_id") one of the object in its field "data". The field is a string that is not empty, or a number, taken as it
// is written (-0 as 0): 42 and "42" are the same, 42 and 42.0 are not, so do not read it as a float. Each name must occur
// once, in whatever case: encoding/json could give the handler another value than the lock's.
//
// A body without such a field is refused with 400, and one above 1 MiB, or the limit of an earlier [http.MaxBytesReader],
// with 413 and an [*http.MaxBytesError]. The body is read before the lock is taken, and the handler can read it again. An
// earlier middleware must unpack a compressed body, and leave the body readable or use [gin.Context.ShouldBindBodyWith].
func JSON(path ...string) Part {
	if len(path) == 0 || slices.Contains(path, "") {
		return nil
	}
	path = slices.Clone(path)
	return Body(func(body []byte) ([]string, error) {
		value, err := jsonfield.Find(body, "body", path)
		switch {
		case errors.Is(err, jsonfield.ErrAbsent):
			return nil, wiring.Absent(&keyError{what: err.Error()})
		case err != nil:
			return nil, &keyError{what: err.Error()}
		}
		return []string{value}, nil
	})
}

// Body takes what take returns for the body, which is read as by [JSON], and which take must not change.
func Body(take func(body []byte) ([]string, error)) Part {
	if take == nil {
		return nil
	}
	return func(c *gin.Context) ([]string, error) {
		body, err := body(c)
		if err != nil {
			return nil, err
		}
		return take(body)
	}
}

// errGone is the error of a body that was still being read when c was given to another request, see hold.
var errGone = errors.New("ginlock: the request was answered while its body was read")

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
	request := c.Request
	original := request.Body
	if original == nil {
		return nil, nil
	}
	read, err := io.ReadAll(io.LimitReader(original, maxBody+1))
	if len(read) > 0 || err != nil {
		request.Body = &replay{unread: read, err: err, rest: original}
	}
	var cut *http.MaxBytesError
	switch {
	case c.Request != request:
		return nil, errGone
	case errors.As(err, &cut):
		return nil, tooLarge(err)
	case errors.Is(err, http.ErrBodyReadAfterClose), err == nil && len(read) == 0 && request.ContentLength > 0:
		return nil, errors.New("ginlock: the body has already been read: put the middleware that reads it after this one, or have it use ShouldBindBodyWith")
	case err != nil:
		return nil, &keyError{what: "a body that did not arrive in full", cause: err}
	case len(read) > maxBody:
		return nil, tooLarge(&http.MaxBytesError{Limit: maxBody})
	}
	return read, nil
}

func tooLarge(err error) error { return &keyError{what: "a body that is too large", cause: err} }

// replay is a body that has been read in part. It returns that part again, and then the rest. If an error ended the
// reading, it returns that error instead of the rest, because not every reader returns its error twice.
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
