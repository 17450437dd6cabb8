package httplock

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"net/http"
)

// writer notes what a handler does with a ResponseWriter. It has those methods of net/http's own that programs look for by
// a type assertion, and [http.ResponseController] finds the others through Unwrap.
type writer struct {
	http.ResponseWriter
	status  int
	written bool
}

// track returns the writer that w is, or has inside, so that it knows of all that was written; or else a new one.
func track(w http.ResponseWriter) *writer {
	for inner := w; ; {
		if known, ok := inner.(*writer); ok && inner == w {
			return known
		} else if ok {
			return &writer{ResponseWriter: w, status: known.status, written: known.written}
		}
		outer, ok := inner.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return &writer{ResponseWriter: w}
		}
		inner = outer.Unwrap()
	}
}

func (w *writer) Status() int   { return cmp.Or(w.status, http.StatusOK) }
func (w *writer) Written() bool { return w.written }

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if !w.written && (status >= 200 || status == http.StatusSwitchingProtocols) { // others come before the response
		w.status, w.written = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(p)
}

// ReadFrom lets net/http send a file without copying it.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.written = true
	return io.Copy(w.ResponseWriter, r)
}

// Flush does nothing if the response cannot be flushed.
func (w *writer) Flush() {
	if http.NewResponseController(w.ResponseWriter).Flush() == nil {
		w.written = true
	}
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.written = w.written || err == nil
	return conn, buffered, err
}

// ended is a response that has been answered in place of its handler. A framework such as Echo answers an error that the
// handler has returned to it, and would do so behind the answer.
type ended http.Header

func (e ended) Header() http.Header         { return http.Header(e) }
func (e ended) WriteHeader(int)             {}
func (e ended) Write(p []byte) (int, error) { return len(p), nil }
