package ginlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func init() { gin.SetMode(gin.TestMode) }

// bubble runs fn in virtual time with a server of its own. What fn leaves behind, a goroutine say, fails it.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fn(t, servertest.NewBubble(t))
	})
}

// replica is one process: a Locker with a client and a link of its own. It fails the test where a lock is still
// held at the end.
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

// errs collects what is in c.Errors when a request is through.
type errs struct {
	mu  sync.Mutex
	all []error
}

func (e *errs) watch(c *gin.Context) {
	c.Next()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, err := range c.Errors {
		e.all = append(e.all, err.Err)
	}
}

// want fails the test unless exactly one error was seen, which matches target; none for a nil target.
func (e *errs) want(t *testing.T, target error) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case target == nil && len(e.all) > 0:
		t.Errorf("c.Errors has %v, want none", e.all)
	case target != nil && (len(e.all) != 1 || !errors.Is(e.all[0], target)):
		t.Errorf("c.Errors has %v, want one that matches %v", e.all, target)
	}
	e.all = nil
}

// ok is the handler of a route whose handler does not matter.
func ok(c *gin.Context) { c.String(http.StatusOK, "done") }

// route makes a router with one route, /orders/:id, behind handlers.
func route(handlers ...gin.HandlerFunc) *gin.Engine {
	router := gin.New()
	router.Any("/orders/:id", handlers...)
	return router
}

// get sends a request to h, whose response is in memory.
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
		t.Fatalf("body %q: %v", w.Body, err)
	}
	if p.Title != http.StatusText(status) || p.Status != status || !strings.Contains(p.Detail, detail) {
		t.Errorf("got body %+v, want status %d and a detail with %q", p, status, detail)
	}
}

// wantTook fails the test unless want has passed since begin, in virtual time.
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

// gated is a handler that stays inside until it is told to leave.
type gated struct{ entered, leave chan struct{} }

func newGated() *gated { return &gated{make(chan struct{}), make(chan struct{})} }

func (g *gated) handle(c *gin.Context) {
	g.entered <- struct{}{}
	<-g.leave
	ok(c)
}

// server is a net/http server whose connections are pipes, so that it lives in a bubble.
type server struct {
	http.Client
	conns  chan net.Conn
	closed chan struct{}

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

func serve(t *testing.T, h http.Handler, configure ...func(*http.Server)) *server {
	t.Helper()
	s := &server{conns: make(chan net.Conn), closed: make(chan struct{})}
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return s.dial(t), nil
	}}
	s.Transport = transport
	srv := &http.Server{Handler: h, ErrorLog: log.New(s, "", 0)}
	for _, c := range configure {
		c(srv)
	}
	go srv.Serve(s)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	return s
}

func (s *server) dial(t *testing.T) net.Conn {
	near, far := net.Pipe()
	select {
	case s.conns <- far:
	case <-s.closed:
		t.Error("the server is closed")
	}
	return near
}

func (s *server) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *server) Close() error   { close(s.closed); return nil }
func (s *server) Addr() net.Addr { return &net.IPAddr{} }

func (s *server) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// wantQuiet fails the test where net/http had something to complain about, a superfluous WriteHeader for
// example.
func (s *server) wantQuiet(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log.Len() > 0 {
		t.Errorf("the server logged: %s", s.log.String())
	}
}

// fetch sends a GET and returns status and body.
func (s *server) fetch(ctx context.Context, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := s.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// fence is what the consumer of a token does: it knows a context and no Gin.
func fence(ctx context.Context) int64 {
	if held := holdfast.Held(ctx); len(held) > 0 {
		return held[0].Token()
	}
	return 0
}

// lockOf is the innermost lock of the request, or nil.
func lockOf(c *gin.Context) *holdfast.Lock {
	if held := holdfast.Held(c.Request.Context()); len(held) > 0 {
		return held[0]
	}
	return nil
}

var byID = ginlock.Param("id")
