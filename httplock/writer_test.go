package httplock_test

import (
	"bufio"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/redis/go-redis/v9"
)

// What a handler can do with the ResponseWriter of net/http it can do under the middleware, with a server on a socket.
func TestResponseWriterKeepsItsAbilities(t *testing.T) {
	logged(t)
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Shutdown(t.Context()); rdb.Close() })
	mw := httplock.Middleware(locker, "order", byID)
	lose := func() { server.FlushAll() }
	for name, tt := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request)
		want   string
	}{
		"early hints": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints); lose() }, "503 unknown"},
		"flush": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			io.WriteString(w, "b")
			lose()
		}, "200 ab"},
		"flush alone": {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); lose() }, "200 "},
		"controller": {func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			fmt.Fprint(w, rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex(), rc.Flush())
		}, "200 <nil> <nil> <nil>"},
		"copy": {func(w http.ResponseWriter, _ *http.Request) {
			if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("copied")); n != 6 || err != nil {
				t.Error(n, err)
			}
			lose()
		}, "200 copied"},
		"hijack": {func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(buffered, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
			buffered.Flush()
			lose() // a problem would be written behind it
			conn.Close()
		}, "200 hi"},
		"through another writer": {func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "a")
			httplock.Respond(wrapped{w}, r, holdfast.ErrClosed)
		}, "200 a"},
	} {
		t.Run(name, func(t *testing.T) {
			done, complaints := make(chan struct{}), &log{} // of net/http, about a second answer
			outside := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(done)
					next.ServeHTTP(w, r)
				})
			}
			s := httptest.NewUnstartedServer(route(tt.handle, outside, mw, mw))
			s.Config.ErrorLog = stdlog.New(complaints, "", 0)
			s.Start()
			defer s.Close()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "GET /orders/%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", strings.ReplaceAll(name, " ", "-"))
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err == nil && resp.StatusCode == http.StatusEarlyHints {
				resp, err = http.ReadResponse(in, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			<-done
			complaints.want(t, "")
			code, want, _ := strings.Cut(tt.want, " ")
			if fmt.Sprint(resp.StatusCode) != code || string(body) != want && (want != "unknown" || !strings.Contains(string(body), want)) {
				t.Errorf("got %d %q, want %s", resp.StatusCode, body, tt.want)
			}
		})
	}
}

type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }
