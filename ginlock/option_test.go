package ginlock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestLaterOfTwoWaitsCountsAndTheLockersDoesNot(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b, holdfast.WithWait(time.Hour))
		defer hold(t, task, "order:42")()
		for _, tt := range []struct {
			want time.Duration
			opts []ginlock.Option
		}{
			{100 * time.Millisecond, nil},
			{0, []ginlock.Option{ginlock.WithWait(0)}},
			{3 * time.Second, []ginlock.Option{ginlock.WithWait(3 * time.Second)}},
			{2 * time.Second, []ginlock.Option{ginlock.WithWait(time.Second), ginlock.WithLock(holdfast.WithWait(2 * time.Second))}},
			{time.Second, []ginlock.Option{ginlock.WithLock(holdfast.WithWait(2 * time.Second)), ginlock.WithWait(time.Second)}},
			{100 * time.Millisecond, []ginlock.Option{ginlock.WithLock(holdfast.WithTTL(5 * time.Second))}},
		} {
			begin := time.Now()
			w := get(route(ginlock.New(api.Locker, "order", byID, tt.opts...), never(t)), "/orders/42")
			wantTook(t, begin, tt.want)
			wantStatus(t, w, http.StatusConflict)
		}
	})
}

func TestErrorHandlerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		defer hold(t, task, "order:42", holdfast.WithLabel("worker-7"))()
		var seen error
		handler := func(answer func(*gin.Context, error)) *gin.Engine {
			return route(ginlock.New(api.Locker, "order", byID, ginlock.WithErrorHandler(func(c *gin.Context, err error) {
				seen = err
				if !c.IsAborted() {
					t.Error("the chain is not aborted yet")
				}
				answer(c, err)
			})), never(t))
		}

		w := get(handler(func(c *gin.Context, _ error) { c.String(http.StatusLocked, "in use") }), "/orders/42")
		wantStatus(t, w, http.StatusLocked)
		if got := w.Body.String(); got != "in use" {
			t.Errorf("got body %q, want the handler's alone", got)
		}
		var held *holdfast.HeldError
		if !errors.As(seen, &held) || held.Label != "worker-7" {
			t.Errorf("the handler got %v, want the HeldError", seen)
		}
		w = get(handler(func(c *gin.Context, _ error) { c.Status(http.StatusTooManyRequests) }), "/orders/42")
		wantStatus(t, w, http.StatusTooManyRequests)
		w = get(handler(func(c *gin.Context, _ error) { c.String(http.StatusOK, "later") }), "/orders/42")
		if got := w.Body.String(); w.Code != http.StatusOK || got != "later" {
			t.Errorf("got %d %q, want the handler's 200 and nothing behind it", w.Code, got)
		}

		// Neither one that only logs nor one that delegates leaves an empty 200.
		wantProblem(t, get(handler(func(*gin.Context, error) {}), "/orders/42"), http.StatusConflict, "1", "in progress")
		wantProblem(t, get(handler(ginlock.Respond), "/orders/42"), http.StatusConflict, "1", "in progress")
	})
}

func TestSkippedRequestsRunWithoutALock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		router := gin.New()
		router.Use(ginlock.New(api.Locker, "order", byID, ginlock.WithSkipper(func(c *gin.Context) bool {
			return c.Request.Method == http.MethodGet
		})))
		router.Any("/orders/:id", func(c *gin.Context) {
			if (ginlock.Get(c) == nil) != (c.Request.Method == http.MethodGet) {
				t.Errorf("%s: Get returned %v", c.Request.Method, ginlock.Get(c))
			}
			ok(c)
		})
		router.NoRoute(func(c *gin.Context) { c.String(http.StatusNotFound, "custom") })

		wantStatus(t, send(router, httptest.NewRequest(http.MethodPost, "/orders/42", nil)), http.StatusOK)
		release := hold(t, task, "order:42")
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		wantStatus(t, send(router, httptest.NewRequest(http.MethodPost, "/orders/42", nil)), http.StatusConflict)
		if got := get(router, "/nothing").Body.String(); got != "custom" {
			t.Errorf("got %q for an exempt request without a route, want the NoRoute handler's body", got)
		}
		release()
	})
}

func TestFailOpenRunsWithoutALockOnlyWhenRedisIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		var errs errs
		var outer, inner *holdfast.Lock
		router := route(errs.watch, ginlock.New(task.Locker, "customer", ginlock.Query("customer")),
			func(c *gin.Context) {
				outer = ginlock.Get(c)
				c.Next()
				if ginlock.Get(c) != outer {
					t.Errorf("behind the inner middleware Get returned %v, want the outer one's again", ginlock.Get(c))
				}
			},
			ginlock.New(api.Locker, "order", byID, ginlock.WithFailOpen()),
			func(c *gin.Context) { inner = ginlock.Get(c); ok(c) })

		wantStatus(t, get(router, "/orders/42?customer=7"), http.StatusOK)
		if inner == nil || inner == outer {
			t.Error("no lock of its own while Redis is there")
		}
		release := hold(t, task, "order:42")
		wantStatus(t, get(router, "/orders/42?customer=7"), http.StatusConflict)
		errs.want(t, nil)

		api.link.CutUp()
		w := get(router, "/orders/42?customer=7")
		wantStatus(t, w, http.StatusOK)
		if inner != nil || outer == nil {
			t.Errorf("Get returned %v outside and %v inside, want the customer's lock and none", outer, inner)
		}
		errs.want(t, holdfast.ErrUnavailable)

		inner = outer
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		begin := time.Now()
		w = send(router, httptest.NewRequestWithContext(ctx, http.MethodGet, "/orders/42?customer=7", nil))
		wantTook(t, begin, 500*time.Millisecond)
		wantStatus(t, w, http.StatusServiceUnavailable)
		if inner == nil {
			t.Error("a request that had ended was let through")
		}
		api.link.Heal()
		release()
	})
}

func TestTwoInstancesKeepTheirOptionsApart(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		router := gin.New()
		shared := []holdfast.CallOption{holdfast.WithLabel("api")}
		router.GET("/a/:id", ginlock.New(api.Locker, "order", byID, ginlock.WithLock(shared...), ginlock.WithWait(time.Second),
			ginlock.WithErrorHandler(func(c *gin.Context, _ error) { c.Status(http.StatusTeapot) })), ok)
		router.GET("/b/:id", ginlock.New(api.Locker, "order", byID, ginlock.WithLock(shared...), ginlock.WithFailOpen(),
			ginlock.WithSkipper(func(c *gin.Context) bool { return c.Param("id") == "1" })), ok)
		router.GET("/c/:id", ginlock.New(api.Locker, "order", byID, ginlock.WithRouteScope()), ok)
		defer hold(t, task, "order:42")()
		defer hold(t, task, "order:1")()
		for _, tt := range []struct {
			path   string
			status int
			took   time.Duration
		}{
			{"/a/42", http.StatusTeapot, time.Second},
			{"/b/42", http.StatusConflict, 100 * time.Millisecond},
			{"/c/42", http.StatusOK, 0},
			{"/a/1", http.StatusTeapot, time.Second},
			{"/b/1", http.StatusOK, 0},
		} {
			begin := time.Now()
			wantStatus(t, get(router, tt.path), tt.status)
			wantTook(t, begin, tt.took)
		}
	})
}

func TestNewPanicsOnMisuseAndSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		l := newReplica(t, b, holdfast.WithMaxHold(20*time.Second)).Locker
		for name, f := range map[string]func(){
			"nil locker":            func() { ginlock.New(nil, "order", byID) },
			"empty resource":        func() { ginlock.New(l, "", byID) },
			"nil part":              func() { ginlock.New(l, "order", nil) },
			"nil option":            func() { ginlock.New(l, "order", byID, nil) },
			"negative wait":         func() { ginlock.New(l, "order", byID, ginlock.WithWait(-1)) },
			"nil skipper":           func() { ginlock.WithSkipper(nil) },
			"nil error handler":     func() { ginlock.WithErrorHandler(nil) },
			"nil lock option":       func() { ginlock.New(l, "order", byID, ginlock.WithLock(nil)) },
			"short lease":           func() { ginlock.New(l, "order", byID, ginlock.WithLock(holdfast.WithTTL(time.Millisecond))) },
			"lease beyond the hold": func() { ginlock.New(l, "order", byID, ginlock.WithLock(holdfast.WithTTL(time.Minute))) },
			"contradicting options": func() { ginlock.New(l, "order", byID, ginlock.WithLock(holdfast.WithoutRenewal())) },
			"unnamed param":         func() { ginlock.Param("") },
			"unnamed header":        func() { ginlock.Header("") },
			"unnamed query":         func() { ginlock.Query("") },
			"unnamed value":         func() { ginlock.Value("") },
			"no parts":              func() { ginlock.Parts() },
			"nil among parts":       func() { ginlock.Parts(byID, nil) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: no panic", name)
					}
				}()
				f()
			}()
		}
		ginlock.New(l, "order", byID, ginlock.WithLock(holdfast.WithLabel("api"), holdfast.WithTTL(time.Second)), ginlock.WithWait(0))
		synctest.Wait()
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent", n)
		}
		if err := l.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		ginlock.New(l, "order", byID) // a matter of the moment, not of the code
	})
}
