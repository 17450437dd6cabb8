package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/holdfast-go/holdfast/internal/adapter/jsonfield"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// maxBody is the largest body that Body reads, in bytes. The body stays in memory while the request waits and runs.
const maxBody = 1 << 20

// JSON returns what takes the field of a body that path leads to, or nil if path has no name, or an empty one.
func (a Adapter) JSON(path []string) func(body []byte) ([]string, error) {
	if len(path) == 0 || slices.Contains(path, "") {
		return nil
	}
	path = slices.Clone(path)
	return func(body []byte) ([]string, error) {
		value, err := jsonfield.Find(body, "body", path)
		switch {
		case errors.Is(err, jsonfield.ErrAbsent):
			return nil, wiring.Absent(&KeyError{Adapter: a, What: err.Error()})
		case err != nil:
			return nil, &KeyError{Adapter: a, What: err.Error()}
		}
		return []string{value}, nil
	}
}

// Body returns a part that takes what take returns for what read reads, or nil for a nil take.
func Body[R any](read func(R) ([]byte, error), take func(body []byte) ([]string, error)) func(R) ([]string, error) {
	if take == nil {
		return nil
	}
	return func(from R) ([]string, error) {
		body, err := read(from)
		if err != nil {
			return nil, err
		}
		return take(body)
	}
}

// Body reads the body of the request and puts back what it has read.
func (a Adapter) Body(r *http.Request) ([]byte, error) {
	original := r.Body
	if original == nil {
		return nil, nil
	}
	read, err := io.ReadAll(io.LimitReader(original, maxBody+1))
	if len(read) > 0 || err != nil {
		r.Body = &replay{unread: read, err: err, rest: original}
	}
	var cut *http.MaxBytesError
	switch {
	case errors.As(err, &cut):
		return nil, a.tooLarge(err)
	case errors.Is(err, http.ErrBodyReadAfterClose), err == nil && len(read) == 0 && r.ContentLength > 0:
		return nil, fmt.Errorf("%s: the body has already been read: put the middleware that reads it after this one", a)
	case err != nil:
		return nil, &KeyError{Adapter: a, What: "a body that did not arrive in full", Cause: err}
	}
	return a.Fits(read)
}

// Fits returns body, or an error if it is larger than what Body reads.
func (a Adapter) Fits(body []byte) ([]byte, error) {
	if len(body) > maxBody {
		return nil, a.tooLarge(&http.MaxBytesError{Limit: maxBody})
	}
	return body, nil
}

func (a Adapter) tooLarge(err error) error {
	return &KeyError{Adapter: a, What: "a body that is too large", Cause: err}
}

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
