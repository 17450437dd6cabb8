package ginlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestLockIsHeldUntilTheHandlerReturnsThoughTheClientIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		g := newGated()
		var ctx context.Context
		router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			if c.Query("again") == "" {
				ctx = c.Request.Context()
				g.handle(c)
			}
		})
		s := serve(t, router)
		client, leave := context.WithCancel(context.Background())
		go s.fetch(client, "/orders/42")
		<-g.entered
		leave()
		synctest.Wait()
		if ctx.Err() == nil {
			t.Fatal("the handler's context goes on without the client")
		}
		time.Sleep(5 * time.Minute) // twenty leases
		wantLocked(t, b, "order:42")
		status, _, err := s.fetch(context.Background(), "/orders/42?again=1")
		if err != nil || status != http.StatusConflict {
			t.Errorf("a second request: got %d, %v, want 409", status, err)
		}
		close(g.leave)
		synctest.Wait()
		wantFree(t, b, "order:42")
		status, _, err = s.fetch(context.Background(), "/orders/42?again=1")
		if err != nil || status != http.StatusOK {
			t.Errorf("a third request: got %d, %v, want 200", status, err)
		}
		s.wantQuiet(t)
	})
}

func TestClientThatLeavesWhileWaitingEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		defer hold(t, task, "order:42")()
		var errs errs
		var status int
		done := make(chan time.Time, 1)
		note := func(c *gin.Context) {
			c.Next()
			status = c.Writer.Status()
			done <- time.Now()
		}
		s := serve(t, route(note, errs.watch, ginlock.New(api.Locker, "order", byID, ginlock.WithBusy(ginlock.Wait(time.Hour))), never(t)))
		begin := time.Now()
		client, leave := context.WithTimeout(context.Background(), 3*time.Second)
		defer leave()
		if _, _, err := s.fetch(client, "/orders/42"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the client got %v", err)
		}
		if took := (<-done).Sub(begin); took != 3*time.Second {
			t.Errorf("the middleware returned after %v, want 3s", took)
		}
		if status != http.StatusConflict {
			t.Errorf("the log has status %d, want 409: that is what the request came to", status)
		}
		errs.want(t, nil)
	})
}

// net/http notices that a client is gone by reading on, for which the body has to be read first.
func TestWaitIsBoundedThoughAnUnreadBodyHidesThatTheClientIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		defer hold(t, task, "order:42")()
		done := make(chan error, 1)
		s := serve(t, route(func(c *gin.Context) {
			c.Next()
			done <- c.Request.Context().Err()
		}, ginlock.New(api.Locker, "order", byID), never(t)))
		begin := time.Now()
		conn := s.dial(t)
		if _, err := io.WriteString(conn, "POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := <-done; err != nil {
			t.Errorf("the context ended: %v; this test tests nothing", err)
		}
		wantTook(t, begin, 100*time.Millisecond)
	})
}

func TestStreamEndsWhenItsStepLooksAtTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		steps := 0
		s := serve(t, route(errs.watch, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			c.Stream(func(w io.Writer) bool {
				if c.Request.Context().Err() != nil {
					return false
				}
				if steps++; steps == 7 {
					b.Redis.Del("order:42")
				}
				fmt.Fprintln(w, "tick")
				time.Sleep(time.Second)
				return true
			})
		}))
		begin := time.Now()
		status, body, err := s.fetch(context.Background(), "/orders/42")
		if err != nil || status != http.StatusOK || strings.Count(body, "tick") != steps {
			t.Errorf("got %d, %q, %v, want 200 and %d ticks and nothing else", status, body, err, steps)
		}
		// The next renewal, at most 5 s later, finds the loss.
		if took := time.Since(begin); steps <= 7 || took > 12*time.Second {
			t.Errorf("the stream went on for %v, %d steps", took, steps)
		}
		errs.want(t, holdfast.ErrLost)
		s.wantQuiet(t)
	})
}

func TestHijackedConnectionIsCoveredUntilTheHandlerReturns(t *testing.T) {
	for _, lose := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			api := newReplica(t, b)
			var errs errs
			left := make(chan struct{})
			handler := func(c *gin.Context) {
				conn, rw, err := c.Writer.Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				rw.WriteString("hello\n")
				rw.Flush()
				time.Sleep(time.Minute)
				wantLocked(t, b, "order:42")
				if lose {
					b.Redis.Del("order:42")
					<-c.Request.Context().Done()
				}
				go func() { // as a WebSocket library that serves the connection elsewhere
					<-left
					io.WriteString(conn, "bye\n")
					conn.Close()
				}()
			}
			s := serve(t, route(errs.watch, ginlock.New(api.Locker, "order", byID), handler))
			conn := s.dial(t)
			io.WriteString(conn, "GET /orders/42 HTTP/1.1\r\nHost: a\r\n\r\n")
			r := bufio.NewReader(conn)
			if line, err := r.ReadString('\n'); line != "hello\n" {
				t.Errorf("got %q, %v", line, err)
			}
			time.Sleep(2 * time.Minute)
			wantFree(t, b, "order:42") // though the connection lives
			close(left)
			if rest, err := io.ReadAll(r); string(rest) != "bye\n" {
				t.Errorf("got %q, %v, want the rest without a response in between", rest, err)
			}
			if lose {
				errs.want(t, holdfast.ErrLost)
			} else {
				errs.want(t, nil)
			}
			s.wantQuiet(t)
		})
	}
}
