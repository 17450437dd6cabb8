package ginlock_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// late is a timeout middleware: it returns when out is closed, and its chain goes on.
type late struct {
	out            chan struct{}
	sync.WaitGroup // the chains
	mu             sync.Mutex
	contexts       map[*gin.Context]bool
}

func (l *late) handle(c *gin.Context) {
	l.mu.Lock()
	l.contexts[c] = true
	l.mu.Unlock()
	done := make(chan struct{})
	l.Go(func() {
		defer close(done)
		c.Next()
	})
	select {
	case <-done:
	case <-l.out:
		c.Abort()
	}
}

// gin gives the Context of a request whose timeout middleware has returned to another request. However the chain ends that
// goes on, it leaves that one alone.
func TestLateChainLeavesOtherRequestsAlone(t *testing.T) {
	const n = 20
	for name, tt := range map[string]struct {
		opts  []ginlock.Option
		held  bool                                              // by another replica
		begun bool                                              // the chain has
		end   func(b *servertest.Bubble, link *servertest.Link) // what happens then
	}{
		"returns":       {begun: true},
		"is lost":       {begun: true, end: func(b *servertest.Bubble, _ *servertest.Link) { b.Redis.FlushAll() }},
		"stays locked":  {begun: true, end: func(_ *servertest.Bubble, link *servertest.Link) { link.CutUp() }},
		"gets its lock": {held: true},
		"is refused":    {held: true},
		"lacks a body":  {},
	} {
		for _, several := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, several %v", name, several), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					api, task := newReplica(t, b), newReplica(t, b)
					part := byID
					if name == "lacks a body" {
						part = ginlock.JSON("id")
					}
					opts := []ginlock.Option{ginlock.WithBusy(ginlock.Wait(time.Minute))}
					if several {
						opts = append(opts, ginlock.WithAlso("customer", part))
					}
					late, leave, look := &late{out: make(chan struct{}), contexts: map[*gin.Context]bool{}}, make(chan struct{}), make(chan struct{})
					var body io.Reader = strings.NewReader("")
					if name == "lacks a body" {
						body = stuck(leave)
					}
					router := gin.New()
					router.POST("/orders/:id", late.handle, ginlock.New(api.Locker, "order", part, opts...), func(c *gin.Context) {
						if !tt.begun {
							t.Error("the chain runs with the Context of another request")
						}
						<-leave
					})
					var mu sync.Mutex
					reused := 0
					router.GET("/others/:id", func(c *gin.Context) {
						request := c.Request
						late.mu.Lock()
						is := late.contexts[c]
						late.mu.Unlock()
						<-look
						if c.Request != request || c.Request.Context() != request.Context() || len(c.Errors) > 0 || c.IsAborted() || c.Writer.Written() {
							t.Errorf("another request is disturbed: its own %v, errors %v, aborted %v, status %d",
								c.Request == request, c.Errors, c.IsAborted(), c.Writer.Status())
						}
						mu.Lock()
						defer mu.Unlock()
						if is {
							reused++
						}
					})
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					var held []func()
					var all sync.WaitGroup
					for i := range n {
						if tt.held {
							held = append(held, hold(t, task, fmt.Sprint("order:", i)))
						}
						all.Go(func() {
							send(router, httptest.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprint("/orders/", i), body))
						})
					}
					synctest.Wait()
					close(late.out)
					all.Wait()
					for i := range n {
						all.Go(func() { get(router, fmt.Sprint("/others/", i)) })
					}
					synctest.Wait()
					if tt.end != nil {
						tt.end(b, api.link)
					}
					if name == "is refused" {
						cancel()
						synctest.Wait()
					}
					for _, release := range held {
						release()
					}
					close(leave)
					late.Wait()
					api.link.Heal()
					close(look)
					all.Wait()
					if reused == 0 {
						t.Error("gin has reused no Context: this test tests nothing")
					}
				})
			})
		}
	}
}

// stuck is a body that does not come, and breaks off.
type stuck chan struct{}

func (s stuck) Read([]byte) (int, error) { <-s; return 0, context.Canceled }
