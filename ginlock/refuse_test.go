package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// never is a handler that must not run.
func never(t *testing.T) gin.HandlerFunc {
	return func(*gin.Context) { t.Error("the handler ran") }
}

func TestHeldIsAConflict(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), never(t))
		byLease := route(errs.watch, ginlock.New(api.Locker, "order", byID, ginlock.WithBusy(ginlock.Wait(100*time.Millisecond).RetryAfterLease())), never(t))
		byHand := route(errs.watch, ginlock.New(api.Locker, "order", byID, ginlock.WithBusy(ginlock.Wait(100*time.Millisecond).RetryAfterLease()),
			ginlock.WithErrorHandler(func(c *gin.Context, err error) { ginlock.Respond(c, err) })), never(t))

		for _, tt := range []struct {
			left  time.Duration // at the last look
			lease string        // Retry-After with the option
		}{
			{10 * time.Hour, "36000"},
			{14 * time.Second, "14"},
			{7001 * time.Millisecond, "8"},
			{time.Second, "1"},
			{300 * time.Millisecond, "1"},
		} {
			if err := b.Redis.Set("order:42", "a foreign holder"); err != nil {
				t.Fatal(err)
			}
			for router, retry := range map[*gin.Engine]string{router: "1", byLease: tt.lease, byHand: tt.lease} {
				b.Redis.SetTTL("order:42", tt.left+100*time.Millisecond)
				begin := time.Now()
				w := get(router, "/orders/42")
				wantTook(t, begin, 100*time.Millisecond)
				wantProblem(t, w, http.StatusConflict, retry, "in progress")
			}
		}
		synctest.Wait() // until the last request has left the line
		b.Redis.Del("order:42")

		release := hold(t, task, holdfast.Key("order", "42")) // as a task or a cron job does
		wantProblem(t, get(router, "/orders/42"), http.StatusConflict, "1", "in progress")
		wantProblem(t, get(byLease, "/orders/42"), http.StatusConflict, "15", "in progress")
		release()
		errs.want(t, nil)
	})
}

func TestHeldForEverIsAConflictWithSomeRetryAfter(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		if err := b.Redis.Set("order:42", "a foreign holder"); err != nil {
			t.Fatal(err)
		}
		w := get(route(ginlock.New(api.Locker, "order", byID), never(t)), "/orders/42")
		wantProblem(t, w, http.StatusConflict, "1", "in progress")
		w = get(route(ginlock.New(api.Locker, "order", byID, ginlock.WithBusy(ginlock.Wait(100*time.Millisecond).RetryAfterLease())), never(t)), "/orders/42")
		wantProblem(t, w, http.StatusConflict, "5", "in progress")
	})
}

func TestRequestWaitsForTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		router := route(ginlock.New(api.Locker, "order", byID), ok)
		release := hold(t, task, "order:42")
		time.AfterFunc(60*time.Millisecond, release)
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		wantFree(t, b, "order:42")
	})
}

func TestRedisDownIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), never(t))
		api.link.Refuse(syscall.ECONNREFUSED)
		begin := time.Now()
		w := get(router, "/orders/42")
		if got := time.Since(begin); got > time.Second {
			t.Errorf("took %v, want at most 1s", got)
		}
		wantProblem(t, w, http.StatusServiceUnavailable, "5", "could not be taken")
		errs.want(t, holdfast.ErrUnavailable)
	})
}

func TestSilentRedisIsUnavailableInTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		for _, tt := range []struct {
			want time.Duration
			opts []ginlock.Option
		}{
			{time.Second, nil},
			{time.Second, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(0))}},
			{3 * time.Second, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(3 * time.Second))}},
			{100 * time.Millisecond, []ginlock.Option{ginlock.WithLock(holdfast.WithTTL(400 * time.Millisecond))}},
		} {
			api := newReplica(t, b) // to which Redis has not been silent before
			api.link.CutUp()
			begin := time.Now()
			w := get(route(ginlock.New(api.Locker, "order", byID, tt.opts...), never(t)), "/orders/42")
			wantTook(t, begin, tt.want)
			wantProblem(t, w, http.StatusServiceUnavailable, "5", "could not be taken")
			api.link.Heal()
		}
	})
}

func TestShutDownLockerIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID, ginlock.WithFailOpen()), never(t))
		if err := api.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, get(router, "/orders/42"), http.StatusServiceUnavailable, "5", "could not be taken")
		errs.want(t, holdfast.ErrClosed)
	})
}

func TestPartsErrorDecidesTheStatus(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		broken := errors.New("the slug's table is gone")
		for _, tt := range []struct {
			err    error
			parts  []string
			status int
			seen   error
		}{
			{broken, nil, http.StatusInternalServerError, broken},
			{fmt.Errorf("no such tenant: %w", holdfast.ErrInvalid), nil, http.StatusBadRequest, nil},
			{nil, nil, http.StatusBadRequest, nil},
			{nil, []string{"a", ""}, http.StatusBadRequest, nil},
		} {
			var errs errs
			part := func(*gin.Context) ([]string, error) { return tt.parts, tt.err }
			w := get(route(errs.watch, ginlock.New(api.Locker, "order", part), never(t)), "/orders/42")
			wantProblem(t, w, tt.status, "", "")
			errs.want(t, tt.seen)
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent for requests without a key", n)
		}
	})
}

// What the server's own code has left out is not the client's fault, and somebody has to hear of it.
func TestMistakeOfTheServerIsNoBadRequest(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		for what, part := range map[string]ginlock.Part{ // what to do about it
			`Param("typo"): the route "/orders/:id" has no such parameter: use one`: ginlock.Param("typo"),
			`Param("name"): the route`: ginlock.Parts(byID, ginlock.Param("name")),
			`Value("user") is not set: put the middleware that calls c.Set("user", ...) before`: ginlock.Value("user"),
			`Value("none") is an empty string: refuse such requests before`:                     ginlock.Value("none"),
			`Value("list") has type []int: set a string`:                                        ginlock.Value("list"),
		} {
			var errs errs
			router := route(errs.watch, func(c *gin.Context) { c.Set("none", ""); c.Set("list", []int{1}) },
				ginlock.New(api.Locker, "order", part), never(t))
			wantProblem(t, get(router, "/orders/42"), http.StatusInternalServerError, "", "could not be determined")
			if len(errs.all) != 1 || !strings.Contains(errs.all[0].Error(), what) || errors.Is(errs.all[0], holdfast.ErrInvalid) {
				t.Errorf("c.Errors has %v, want one with %s", errs.all, what)
			}
		}
		router := gin.New() // a parameter that is there, and empty
		router.GET("/orders/:id/pay", ginlock.New(api.Locker, "order", byID), never(t))
		wantProblem(t, get(router, "/orders//pay"), http.StatusBadRequest, "", "path parameter")
	})
}

func TestProblemReplacesWhatWasPreparedForAnotherBody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		defer hold(t, task, "order:42")()
		s := serve(t, route(func(c *gin.Context) {
			c.Header("Content-Type", "text/csv")
			c.Header("Content-Length", "100000")
		}, ginlock.New(api.Locker, "order", byID), never(t)))
		resp, err := s.Get("http://127.0.0.1/orders/42")
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		w.Code = resp.StatusCode
		if _, err := w.Body.ReadFrom(resp.Body); err != nil {
			t.Errorf("reading the body: %v", err)
		}
		resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		wantProblem(t, w, http.StatusConflict, "1", "in progress")
	})
}

func TestUnmatchedRequestsGetGinsAnswerWithoutALock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := gin.New()
		router.HandleMethodNotAllowed = true
		router.Use(ginlock.New(api.Locker, "order", ginlock.Header("Order")))
		router.NoRoute(never(t)) // may be a proxy: it must not run without a lock
		router.NoMethod(never(t))
		router.POST("/orders", ok)

		wantStatus(t, get(router, "/nothing", "Order", "1"), http.StatusNotFound)
		wantStatus(t, get(router, "/nothing"), http.StatusNotFound)
		w := get(router, "/orders", "Order", "1")
		wantStatus(t, w, http.StatusMethodNotAllowed)
		if got := w.Body.String(); got != "405 method not allowed" {
			t.Errorf("got body %q, want gin's own", got)
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent, want none", n)
		}

		c, _ := gin.CreateTestContext(httptest.NewRecorder()) // no router at all
		c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
		ginlock.New(api.Locker, "order", ginlock.Header("Order"))(c)
		if got := c.Writer.Status(); got != http.StatusNotFound || !c.IsAborted() {
			t.Errorf("without a router: status %d, aborted %v, want 404, true", got, c.IsAborted())
		}
	})
}
