package ginlock_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What one request has waited out of a silent Redis, the next ones need not, with WithFailOpen or without; and they notice
// when it is back.
func TestOneRequestWaitsForASilentRedis(t *testing.T) {
	const bound = 20 * time.Millisecond
	for name, tt := range map[string]struct {
		opts  []ginlock.Option
		first time.Duration
	}{
		"by default": {nil, time.Second},
		"Wait(0)":    {[]ginlock.Option{ginlock.WithBusy(ginlock.Wait(0))}, time.Second},
		"Wait(2s)":   {[]ginlock.Option{ginlock.WithBusy(ginlock.Wait(2 * time.Second))}, 2 * time.Second},
		"several":    {[]ginlock.Option{ginlock.WithAlso("customer", byID)}, time.Second},
	} {
		for _, open := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, fail open %v", name, open), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					api := newReplica(t, b)
					status, opts := http.StatusServiceUnavailable, tt.opts
					if open {
						status, opts = http.StatusOK, append([]ginlock.Option{ginlock.WithFailOpen()}, opts...)
					}
					var locked atomic.Int32
					router := route(ginlock.New(api.Locker, "order", byID, opts...), func(c *gin.Context) {
						if lockOf(c) != nil {
							locked.Add(1)
						}
						ok(c)
					})
					request := func(id int) time.Duration {
						begin := time.Now()
						if w := get(router, fmt.Sprint("/orders/", id)); w.Code != status {
							t.Errorf("got %d, want %d", w.Code, status)
						}
						return time.Since(begin)
					}
					wantStatus(t, get(router, "/orders/1"), http.StatusOK)
					api.link.CutUp()
					if took := request(1); took < tt.first || took > tt.first+bound {
						t.Errorf("the first took %v", took)
					}
					for i := range 200 { // of one key and of many, and in an outage that goes on
						if took := request(i % 7); took > bound {
							t.Fatalf("request %d took %v", i, took)
						}
						time.Sleep(time.Duration(i*i%977) * time.Millisecond)
					}
					var all sync.WaitGroup
					for i := range 100 {
						all.Go(func() {
							if took := request(i % 2); took > bound {
								t.Errorf("of many at once one took %v", took)
							}
						})
					}
					all.Wait()
					b.ResetCommands()
					api.link.Heal()
					locked.Store(0)
					time.Sleep(time.Second)
					wantStatus(t, get(router, "/orders/99"), http.StatusOK)
					if locked.Load() != 1 {
						t.Error("after a second the request has no lock")
					}
					if n := b.Commands().Total(); n > 200 {
						t.Errorf("%d commands for an outage of 302 requests", n)
					}
				})
			})
		}
	}
}
