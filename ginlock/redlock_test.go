package ginlock_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A Locker on several masters is used like any other, while a majority of them is there.
func TestRedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var masters []*servertest.Bubble
		for range 3 {
			masters = append(masters, servertest.NewBubble(t))
		}
		locker := func() *holdfast.Locker {
			var clients []*redis.Client
			for _, m := range masters {
				clients = append(clients, m.Client())
			}
			l, err := redlock.New(clients)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		a, b := locker(), locker()
		rival := route(ginlock.New(b, "order", byID), ok)
		var token int64
		api := route(ginlock.New(a, "order", byID), func(c *gin.Context) {
			token = lockOf(c).Token()
			if w := get(rival, "/orders/42"); w.Code == http.StatusOK {
				t.Error("two requests at once")
			}
			ok(c)
		})
		for i := range 3 {
			wantStatus(t, get(api, "/orders/42"), http.StatusOK)
			if token == 0 {
				t.Error("no token")
			}
			time.Sleep(time.Second)
			wantStatus(t, get(rival, "/orders/42"), http.StatusOK)
			time.Sleep(time.Second)
			if i == 1 {
				masters[2].Down()
			}
		}
		masters[1].Down()
		wantStatus(t, get(api, "/orders/42"), http.StatusServiceUnavailable)
		for _, l := range []*holdfast.Locker{a, b} {
			if err := l.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
