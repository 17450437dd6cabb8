package ginlock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
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

// One request for each user and twenty for the provider, on all replicas: what is refused says which of the two it was.
func TestLimitOfOneOfSeveral(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		one, two := newReplica(t, b), newReplica(t, b)
		var errs errs
		live := map[string]int{}
		var mu sync.Mutex
		serve := func(r *replica) *gin.Engine {
			limits := ginlock.New(r.Locker, "by-user", byID, ginlock.WithAlso("provider", ginlock.Query("p"), holdfast.WithLimit(20)))
			return route(errs.watch, limits, func(c *gin.Context) {
				for _, by := range []int{1, -1} {
					mu.Lock()
					for _, lock := range holdfast.Held(c.Request.Context()) {
						want := 1
						if lock.Key() == "provider:x" {
							want = 20
						}
						if live[lock.Key()] += by; lock.Limit() != want || live[lock.Key()] > want {
							t.Errorf("%d in %s with a limit of %d, want %d", live[lock.Key()], lock.Key(), lock.Limit(), want)
						}
					}
					mu.Unlock()
					if by == 1 {
						time.Sleep(time.Second)
					}
				}
				ok(c)
			})
		}
		routers := []*gin.Engine{serve(one), serve(two)}
		var all sync.WaitGroup
		answers := make(chan int, 30)
		for i := range 30 {
			all.Go(func() { answers <- get(routers[i%2], fmt.Sprintf("/orders/%d?p=x", i)).Code })
		}
		all.Wait()
		close(answers)
		got := map[int]int{}
		for code := range answers {
			got[code]++
		}
		if got[http.StatusOK] != 20 || got[http.StatusTooManyRequests] != 10 {
			t.Errorf("got %v, want 20 of 200 and 10 of 429", got)
		}
		free := hold(t, two, "by-user:7")
		wantProblem(t, get(routers[0], "/orders/7?p=x"), http.StatusConflict, "1", "in progress")
		free()
		free = hold(t, two, "provider:x")
		wantProblem(t, get(routers[0], "/orders/7?p=x"), http.StatusTooManyRequests, "1", "maximum number")
		free()
		errs.want(t, nil)
	})
}

// A request whose parts name one key has the lock with the smaller of their limits.
func TestSmallestLimitOfAKeyThatIsNamedTwice(t *testing.T) {
	shared, alone := holdfast.WithShared(), holdfast.WithLimit(1)
	for name, mw := range map[string]func(*holdfast.Locker) gin.HandlerFunc{
		"from a reader": func(l *holdfast.Locker) gin.HandlerFunc {
			return ginlock.New(l, "account", byID, ginlock.WithLock(shared), ginlock.WithAlso("account", ginlock.Query("to"), alone))
		},
		"to a reader": func(l *holdfast.Locker) gin.HandlerFunc {
			return ginlock.New(l, "account", byID, ginlock.WithAlso("account", ginlock.Query("to"), shared))
		},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			limits := func(want ...int) gin.HandlerFunc {
				return func(c *gin.Context) {
					var got []int
					for _, lock := range holdfast.Held(c.Request.Context()) {
						got = append(got, lock.Limit())
					}
					if slices.Sort(got); !slices.Equal(got, want) {
						t.Errorf("%s: limits of %v, want %v", name, got, want)
					}
					ok(c)
				}
			}
			l := newReplica(t, b).Locker
			wantStatus(t, get(route(mw(l), limits(0, 1)), "/orders/a?to=b"), http.StatusOK)
			wantStatus(t, get(route(mw(l), limits(1)), "/orders/a?to=a"), http.StatusOK)
		})
	}
}
