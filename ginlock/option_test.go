package ginlock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestOnlyTheWaitOfWithBusyCounts(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b, holdfast.WithWait(time.Hour))
		defer hold(t, task, "order:42")()
		for _, tt := range []struct {
			want time.Duration
			opts []ginlock.Option
		}{
			{100 * time.Millisecond, nil},
			{0, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(0))}},
			{3 * time.Second, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(3 * time.Second))}},
			{0, []ginlock.Option{ginlock.WithBusy(ginlock.Policy{})}},
			{2 * time.Second, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(time.Second)), ginlock.WithBusy(ginlock.Wait(2 * time.Second))}},
			{time.Second, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(time.Second)), ginlock.WithLock(holdfast.WithWait(2 * time.Second))}},
			{100 * time.Millisecond, []ginlock.Option{ginlock.WithLock(holdfast.WithWait(2 * time.Second))}},
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

// A handler that calls the middleware exempts the requests that it wants to.
func TestSkippedRequestsRunWithoutALock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		router := gin.New()
		lock := ginlock.New(api.Locker, "order", byID)
		router.Use(func(c *gin.Context) {
			if c.Request.Method != http.MethodGet {
				lock(c)
			}
		})
		router.Any("/orders/:id", func(c *gin.Context) {
			if (lockOf(c) == nil) != (c.Request.Method == http.MethodGet) {
				t.Errorf("%s: the request has %v", c.Request.Method, lockOf(c))
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
				outer = lockOf(c)
				c.Next()
				if lockOf(c) != outer {
					t.Errorf("behind the inner middleware the request has %v, want the outer one's lock again", lockOf(c))
				}
			},
			ginlock.New(api.Locker, "order", byID, ginlock.WithFailOpen()),
			func(c *gin.Context) { inner = lockOf(c); ok(c) })

		wantStatus(t, get(router, "/orders/42?customer=7"), http.StatusOK)
		if inner == nil || inner == outer {
			t.Error("no lock of its own while Redis is there")
		}
		release := hold(t, task, "order:42")
		wantStatus(t, get(router, "/orders/42?customer=7"), http.StatusConflict)
		errs.want(t, nil)

		api.link.CutUp()
		inner = nil
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		begin := time.Now()
		w := send(router, httptest.NewRequestWithContext(ctx, http.MethodGet, "/orders/42?customer=7", nil))
		wantTook(t, begin, 500*time.Millisecond)
		wantStatus(t, w, http.StatusServiceUnavailable)
		if inner != nil {
			t.Error("a request that had ended was let through")
		}
		errs.want(t, holdfast.ErrUnavailable)

		w = get(router, "/orders/42?customer=7")
		wantStatus(t, w, http.StatusOK)
		if inner != outer || outer == nil {
			t.Errorf("got %v outside and %v inside, want the customer's lock and no other", outer, inner)
		}
		errs.want(t, holdfast.ErrUnavailable)
		api.link.Heal()
		release()
	})
}

func TestTwoInstancesKeepTheirOptionsApart(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		router := gin.New()
		shared := []holdfast.CallOption{holdfast.WithLabel("api")}
		router.GET("/a/:id", ginlock.New(api.Locker, "order", byID, ginlock.WithLock(shared...), ginlock.WithBusy(ginlock.Wait(time.Second)),
			ginlock.WithErrorHandler(func(c *gin.Context, _ error) { c.Status(http.StatusTeapot) })), ok)
		router.GET("/b/:id", ginlock.New(api.Locker, "order", byID, ginlock.WithLock(shared...), ginlock.WithFailOpen()), ok)
		router.GET("/c/:id", ginlock.New(api.Locker, "invoice", byID), ok)
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
			{"/b/1", http.StatusConflict, 100 * time.Millisecond},
		} {
			begin := time.Now()
			wantStatus(t, get(router, tt.path), tt.status)
			wantTook(t, begin, tt.took)
		}
	})
}

// want is what the panic says, all of it in one error. No option and no part panics by itself.
func TestNewJudgesEverythingAtOnceAndSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		l := newReplica(t, b, holdfast.WithMaxHold(20*time.Second)).Locker
		lock := func(opts ...holdfast.CallOption) []ginlock.Option { return []ginlock.Option{ginlock.WithLock(opts...)} }
		for name, tt := range map[string]struct {
			locker   *holdfast.Locker
			resource string
			part     ginlock.Part
			opts     []ginlock.Option
			want     []string
		}{
			"nil locker":          {nil, "order", byID, nil, []string{"no Locker"}},
			"empty resource":      {l, "", byID, nil, []string{"resource"}},
			"nil part":            {l, "order", nil, nil, []string{"no part"}},
			"unnamed param":       {l, "order", ginlock.Param(""), nil, []string{"no part", "name"}},
			"unnamed header":      {l, "order", ginlock.Header(""), nil, []string{"no part", "name"}},
			"unnamed query":       {l, "order", ginlock.Query(""), nil, []string{"no part", "name"}},
			"unnamed value":       {l, "order", ginlock.Value(""), nil, []string{"no part", "name"}},
			"unnamed field":       {l, "order", ginlock.JSON(""), nil, []string{"no part", "name"}},
			"no parts":            {l, "order", ginlock.Parts(), nil, []string{"no part", "Parts"}},
			"nil among parts":     {l, "order", ginlock.Parts(byID, nil), nil, []string{"no part", "Parts"}},
			"unnamed among parts": {l, "order", ginlock.Parts(ginlock.Parts(byID, ginlock.Query("")), byID), nil, []string{"no part", "Parts"}},
			"nil option":          {l, "order", byID, []ginlock.Option{ginlock.WithFailOpen(), nil}, []string{"option 2 of 2 is nil"}},
			"negative wait":       {l, "order", byID, []ginlock.Option{ginlock.WithBusy(ginlock.Wait(-1))}, []string{"WithBusy(Wait(-1ns))"}},
			"nil trace":           {l, "order", byID, []ginlock.Option{ginlock.WithTrace(nil)}, []string{"WithTrace(nil)"}},
			"nil error handler":   {l, "order", byID, []ginlock.Option{ginlock.WithErrorHandler(nil)}, []string{"WithErrorHandler(nil)"}},
			"nil lock option":     {l, "order", byID, lock(holdfast.WithLabel("a"), nil), []string{"WithLock", "nil option"}},
			"short lease":         {l, "order", byID, lock(holdfast.WithTTL(time.Millisecond)), []string{"WithTTL(1ms)"}},
			"lease beyond hold":   {l, "order", byID, lock(holdfast.WithTTL(time.Minute)), []string{"WithMaxHold", "1m0s"}},
			"contradiction":       {l, "order", byID, lock(holdfast.WithoutRenewal()), []string{"WithoutRenewal"}},
			"re-entry":            {l, "order", byID, lock(holdfast.WithReentryID("x")), []string{"WithReentryID is for one call"}},
			"useless wait":        {l, "order", byID, lock(holdfast.WithWait(-1)), []string{"WithWait(-1ns)"}},
			"also no resource":    {l, "order", byID, []ginlock.Option{ginlock.WithAlso("", byID)}, []string{"WithAlso: no resource"}},
			"also no part":        {l, "order", byID, []ginlock.Option{ginlock.WithAlso("customer", ginlock.Param(""))}, []string{"WithAlso: no part"}},
			"also a wait":         {l, "order", byID, []ginlock.Option{ginlock.WithAlso("customer", byID, holdfast.WithWait(time.Second))}, []string{"WithAlso: ", "WithWait"}},
			"also no limit":       {l, "order", byID, []ginlock.Option{ginlock.WithAlso("customer", byID, holdfast.WithLimit(0))}, []string{"WithAlso: ", "WithLimit(0)"}},
			"also an id":          {l, "order", byID, []ginlock.Option{ginlock.WithAlso("customer", byID, holdfast.WithReentryID("id"))}, []string{"WithAlso: ", "WithReentryID"}},
			"also a nil option":   {l, "order", byID, []ginlock.Option{ginlock.WithAlso("customer", byID, nil)}, []string{"WithAlso: ", "nil option"}},
			"also a short hold":   {l, "order", byID, []ginlock.Option{ginlock.WithLock(holdfast.WithMaxHold(time.Minute)), ginlock.WithAlso("customer", byID, holdfast.WithTTL(time.Hour))}, []string{"WithAlso: ", "WithMaxHold"}},
			"one key of many":     {l, "order", byID, []ginlock.Option{ginlock.WithLock(holdfast.OnKey("order:42", holdfast.WithLimit(2)))}, []string{"WithLock: ", "OnKey"}},
			"share of no part":    {l, "order", byID, []ginlock.Option{ginlock.WithShare(ginlock.Parts(byID, ginlock.Value("")))}, []string{"WithShare: no part", "Parts"}},
			"too many":            {l, "order", byID, slices.Repeat([]ginlock.Option{ginlock.WithAlso("order", byID)}, 64), []string{"65 locks", "at most 64"}},
			"all of it": {l, "", nil, []ginlock.Option{nil, ginlock.WithTrace(nil), ginlock.WithBusy(ginlock.Wait(-time.Second)), ginlock.WithErrorHandler(nil),
				ginlock.WithLock(holdfast.WithTTL(0))}, []string{"resource", "part", "option 1 of 5", "WithTrace", "WithBusy", "WithErrorHandler", "WithTTL(0s)"}},
			"also without a locker": {nil, "", byID, []ginlock.Option{ginlock.WithTrace(nil)}, []string{"no Locker", "no resource", "WithTrace"}},
		} {
			func() {
				defer func() {
					err, _ := recover().(error)
					if !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "ginlock: New: ") {
						t.Errorf("%s: panic with %v, want an ErrInvalid of ginlock", name, err)
						return
					}
					for _, want := range tt.want {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%s: got %q, want %q in it", name, err, want)
						}
					}
					if got := strings.Count(err.Error(), "; ") + 1; name == "all of it" && got != 7 {
						t.Errorf("%s: got %q: %d mistakes, want 7", name, err, got)
					}
				}()
				ginlock.New(tt.locker, tt.resource, tt.part, tt.opts...)
			}()
		}
		ginlock.New(l, "order", byID, ginlock.WithLock(holdfast.WithLabel("api"), holdfast.WithTTL(time.Second)), ginlock.WithBusy(ginlock.Policy{}))
		ginlock.New(l, "order", byID, slices.Repeat([]ginlock.Option{ginlock.WithAlso("order", byID)}, 63)...)
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

// A slice that the caller goes on using is the caller's.
func TestNewKeepsNoSliceOfItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		opts := make([]holdfast.CallOption, 1, 8)
		opts[0] = holdfast.WithLabel("first")
		parts := []ginlock.Part{byID}
		part, lock := ginlock.Parts(parts...), ginlock.WithLock(opts...)
		opts[0], parts[0] = holdfast.WithLabel("second"), nil
		var label string
		router := route(ginlock.New(api.Locker, "order", part, lock), func(c *gin.Context) {
			state, err := api.Inspect(c.Request.Context(), "order:42")
			if err != nil {
				t.Error(err)
			}
			label = state.Label
		})
		if got := opts[:2][1]; got != nil {
			t.Errorf("New has written %v behind the caller's slice", got)
		}
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		if label != "first" {
			t.Errorf("got label %q, want the one that WithLock was given", label)
		}
	})
}
