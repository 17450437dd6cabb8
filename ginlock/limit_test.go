package ginlock_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Of n+1 requests on all replicas one is refused, with 429; a writer has the tenant alone.
func TestLimitOfATenant(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		one, two := newReplica(t, b), newReplica(t, b)
		var errs errs
		serve := func(r *replica) *gin.Engine {
			return route(errs.watch, ginlock.New(r.Locker, "tenant", byID, ginlock.WithLimit(3)), func(c *gin.Context) {
				if got := lockOf(c).Limit(); got != 3 {
					t.Errorf("a limit of %d", got)
				}
				time.Sleep(time.Second)
				ok(c)
			})
		}
		routers := []*gin.Engine{serve(one), serve(two)}
		var all sync.WaitGroup
		answers := make(chan *httptest.ResponseRecorder, 4)
		for i := range 4 {
			all.Go(func() { answers <- get(routers[i%2], "/orders/7") })
		}
		synctest.Wait()
		time.Sleep(200 * time.Millisecond)
		wantProblem(t, <-answers, http.StatusTooManyRequests, "1", "maximum number")
		all.Wait()
		for range 3 {
			wantStatus(t, <-answers, http.StatusOK)
		}
		free := hold(t, two, holdfast.Key("tenant", "7"))
		wantProblem(t, get(routers[0], "/orders/7"), http.StatusTooManyRequests, "1", "maximum number")
		free()
		free = hold(t, two, holdfast.Key("tenant", "7"), holdfast.WithLimit(3))
		wantStatus(t, get(routers[0], "/orders/7"), http.StatusOK)
		free()
		errs.want(t, nil)
	})
}
