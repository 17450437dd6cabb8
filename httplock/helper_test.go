package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// bubble runs fn in virtual time with a server of its own. What fn leaves behind, a goroutine say, fails it.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, servertest.NewBubble(t)) })
}

// replica is one process. It fails the test where a lock is still held at the end.
type replica struct {
	*holdfast.Locker
	link *servertest.Link
}

func newReplica(t *testing.T, b *servertest.Bubble, opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client()
	l, err := holdfast.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v; a lock was not released", err)
		}
	})
	return &replica{l, b.Link(rdb)}
}

// hold takes key and holds it until the function that it returns is called.
func hold(t *testing.T, r *replica, key string, opts ...holdfast.CallOption) (release func()) {
	t.Helper()
	lock, err := r.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return func() {
		t.Helper()
		if err := lock.Release(context.Background()); err != nil {
			t.Errorf("Release(%q): %v", key, err)
		}
	}
}

// logged collects what slog is told until the test ends.
func logged(t *testing.T) *log {
	l, before := &log{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

type log struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// want fails the test unless there is one line, with what; none for "".
func (l *log) want(t *testing.T, what string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 1
	if what == "" {
		n = 0
	}
	if got := l.all.String(); strings.Count(got, "\n") != n || !strings.Contains(got, what) {
		t.Errorf("logged %q, want %d lines with %q", got, n, what)
	}
	l.all.Reset()
}

var byID = httplock.Path("id")

// route makes a mux with one route, /orders/{id}, whose handler is behind middlewares.
func route(handle http.HandlerFunc, middlewares ...func(http.Handler) http.Handler) http.Handler {
	var h http.Handler = handle
	for i := len(middlewares) - 1; i >= 0; i-- {
		h = middlewares[i](h)
	}
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", h)
	return mux
}

func ok(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("done")) }

// never is a handler that must not run.
func never(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	return send(h, httptest.NewRequest(http.MethodGet, path, nil), header...)
}

func send(h http.Handler, req *http.Request, header ...string) *httptest.ResponseRecorder {
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func wantStatus(t *testing.T, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	if w.Code != status {
		t.Errorf("got status %d, want %d; body %s", w.Code, status, w.Body)
	}
}

// wantProblem fails the test unless w is a refusal as RFC 9457 has it, with this Retry-After ("" for none).
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, retryAfter, detail string) {
	t.Helper()
	wantStatus(t, w, status)
	if got := w.Header().Get("Retry-After"); got != retryAfter {
		t.Errorf("got Retry-After %q, want %q", got, retryAfter)
	}
	if got := w.Header().Values("Content-Type"); len(got) != 1 || got[0] != "application/problem+json" {
		t.Errorf("got Content-Type %q, want application/problem+json", got)
	}
	var p struct {
		Title, Detail string
		Status        int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Errorf("body %q: %v", w.Body, err)
	}
	if p.Title != http.StatusText(status) || p.Status != status || !strings.Contains(p.Detail, detail) {
		t.Errorf("got body %+v, want status %d and a detail with %q", p, status, detail)
	}
}

func wantTook(t *testing.T, begin time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(begin); got != want {
		t.Errorf("took %v, want %v", got, want)
	}
}

func wantFree(t *testing.T, b *servertest.Bubble, key string) {
	t.Helper()
	if b.Redis.Exists(key) {
		t.Errorf("%q is still locked", key)
	}
}

func wantLocked(t *testing.T, b *servertest.Bubble, key string) {
	t.Helper()
	if !b.Redis.Exists(key) {
		t.Errorf("%q is not locked", key)
	}
}

// lockOf is the innermost lock of the request, or nil.
func lockOf(r *http.Request) *holdfast.Lock {
	if held := holdfast.Held(r.Context()); len(held) > 0 {
		return held[0]
	}
	return nil
}
