package ginlock_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A client that sends its body slowly, or reads the response slowly, keeps the handler at work, and so the lock. These are
// the time-outs of net/http that bound it.

// slow is a client that takes its time.
type slow struct {
	request string
	handle  func(c *gin.Context) error // until the client has ended it, or a time-out
	bound   func(*http.Server, time.Duration)
	useless []func(*http.Server, time.Duration)
}

func readTimeout(s *http.Server, d time.Duration)   { s.ReadTimeout = d }
func headerTimeout(s *http.Server, d time.Duration) { s.ReadHeaderTimeout = d }
func writeTimeout(s *http.Server, d time.Duration)  { s.WriteTimeout = d }
func idleTimeout(s *http.Server, d time.Duration)   { s.IdleTimeout = d }
func unbounded(*http.Server, time.Duration)         {}

var slows = map[string]slow{
	"a dripping upload": {
		request: "POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n",
		handle: func(c *gin.Context) error {
			_, err := io.Copy(io.Discard, c.Request.Body)
			return err
		},
		bound:   readTimeout,
		useless: []func(*http.Server, time.Duration){headerTimeout, writeTimeout, idleTimeout},
	},
	"a slow reader": {
		request: "GET /orders/42 HTTP/1.1\r\nHost: a\r\n\r\n",
		handle: func(c *gin.Context) (err error) {
			for chunk := make([]byte, 1<<20); err == nil; { // no buffer has room for all of them
				_, err = c.Writer.Write(chunk)
			}
			return err
		},
		bound:   writeTimeout,
		useless: []func(*http.Server, time.Duration){readTimeout, headerTimeout, idleTimeout},
	},
}

func TestTimeoutsOfTheServerBoundASlowClient(t *testing.T) {
	const limit = 10 * time.Second
	for name, c := range slows {
		t.Run(name, func(t *testing.T) {
			for i, configure := range append(c.useless, unbounded, c.bound) {
				bounds := i == len(c.useless)+1
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					api := newReplica(t, b)
					ended := make(chan error, 1)
					s := serve(t, route(ginlock.New(api.Locker, "order", byID), func(g *gin.Context) { ended <- c.handle(g) }),
						func(s *http.Server) { configure(s, limit) })
					begin := time.Now()
					conn := s.dial(t)
					if _, err := io.WriteString(conn, c.request); err != nil {
						t.Fatal(err)
					}
					done := make(chan struct{})
					go func() { // a byte a second, of whichever it is
						defer close(done)
						for {
							time.Sleep(time.Second)
							_ = conn.SetDeadline(time.Now().Add(time.Second / 2))
							if _, err := conn.Write([]byte{'x'}); errors.Is(err, io.ErrClosedPipe) {
								return
							}
							_, _ = conn.Read(make([]byte, 1))
						}
					}()
					select {
					case err := <-ended:
						if took := time.Since(begin); !bounds || took > limit+time.Second || !errors.Is(err, os.ErrDeadlineExceeded) {
							t.Errorf("the handler ended after %v with %v; its time-out bounds it: %v", took, err, bounds)
						}
						time.Sleep(time.Second)
						wantFree(t, b, "order:42")
					case <-time.After(10 * time.Minute):
						if bounds {
							t.Error("the handler still runs")
						}
						wantLocked(t, b, "order:42")
					}
					conn.Close()
					<-done
				})
			}
		})
	}
}

// The same with sockets: the client says nothing more, and reads nothing. The deadlines may be those of one route, too. What
// fails ends the request's context, with HTTP/1.
func TestTimeoutsOfTheServerBoundASlowClientOnLoopback(t *testing.T) {
	t.Parallel()
	const limit = 100 * time.Millisecond
	for name, c := range slows {
		for _, byRoute := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by route %v", name, byRoute), func(t *testing.T) {
				t.Parallel()
				locker := newLocker(t, servertest.Redis(t).Client())
				ended := make(chan error, 1)
				deadlines := func(g *gin.Context) {
					if byRoute {
						rc := http.NewResponseController(g.Writer)
						if err := errors.Join(rc.SetReadDeadline(time.Now().Add(limit)), rc.SetWriteDeadline(time.Now().Add(limit))); err != nil {
							t.Error(err)
						}
					}
				}
				server := httptest.NewUnstartedServer(route(deadlines, ginlock.New(locker, "order", byID), func(g *gin.Context) {
					err := c.handle(g)
					select {
					case <-g.Request.Context().Done():
					case <-time.After(30 * time.Second):
						t.Error("the request's context goes on after a read or a write that failed")
					}
					ended <- err
				}))
				if !byRoute {
					c.bound(server.Config, limit)
				}
				server.Start()
				t.Cleanup(server.Close)
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				if _, err := io.WriteString(conn, c.request); err != nil {
					t.Fatal(err)
				}
				if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the handler ended with %v", err)
				}
				lock, err := locker.Acquire(t.Context(), holdfast.Key("order", "42"))
				if err != nil {
					t.Fatal(err)
				}
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What the time-outs do to the context of a request whose handler is at work: nothing, but for WriteTimeout with HTTP/2.
func TestTimeoutsOfTheServerAndTheContext(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	for _, http2 := range []bool{false, true} {
		for name, configure := range map[string]func(*http.Server, time.Duration){"read": readTimeout, "write": writeTimeout} {
			ends := http2 && name == "write"
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				t.Parallel()
				locker := newLocker(t, servertest.Redis(t).Client())
				var entered atomic.Bool
				ended, begin := make(chan bool, 1), time.Now()
				router := route(ginlock.New(locker, "order", byID), func(c *gin.Context) {
					entered.Store(true)
					wait := 3 * limit
					if ends {
						wait = time.Minute
					}
					select {
					case <-c.Request.Context().Done():
						ended <- true
					case <-time.After(wait):
						ended <- false
					}
				})
				server := httptest.NewUnstartedServer(router)
				server.EnableHTTP2 = http2
				configure(server.Config, limit)
				if http2 {
					server.StartTLS()
				} else {
					server.Start()
				}
				defer server.Close()
				go func() {
					for !entered.Load() { // the handshake has no more time than a request
						if resp, err := server.Client().Get(server.URL + "/orders/42"); err == nil {
							resp.Body.Close()
						}
					}
				}()
				if got := <-ended; got != ends {
					t.Errorf("the context ended: %v, want %v, after %v", got, ends, time.Since(begin))
				}
			})
		}
	}
}
