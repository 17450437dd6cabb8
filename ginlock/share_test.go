package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// tenant is a middleware that has authenticated a tenant, or nobody.
func tenant(c *gin.Context) {
	if name := c.GetHeader("Authorization"); name != "" {
		c.Set("tenant", name)
	}
}

var byTenant = ginlock.WithShare(ginlock.Value("tenant"))

// While requests of one tenant wait, those of another, and those of none, wait for two others at most, on each replica.
func TestShareOfATenant(t *testing.T) {
	for name, on := range map[string]int{"the same replica": 0, "another replica": 1} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			const hold = 20 * time.Millisecond
			var errs errs
			var routers []*gin.Engine
			for range 2 {
				limits := ginlock.New(newReplica(t, b).Locker, "provider", byID, ginlock.WithLimit(2), byTenant, ginlock.WithBusy(ginlock.Wait(time.Minute)))
				routers = append(routers, route(errs.watch, tenant, limits, func(c *gin.Context) {
					time.Sleep(hold)
					ok(c)
				}))
				wantStatus(t, get(routers[len(routers)-1], "/orders/warm"), http.StatusOK)
			}
			var all sync.WaitGroup
			began := time.Now()
			for range 100 {
				all.Go(func() { wantStatus(t, get(routers[0], "/orders/7", "Authorization", "big"), http.StatusOK) })
			}
			for _, who := range [][]string{{"Authorization", "small"}, nil} {
				all.Go(func() {
					for i := range 10 {
						time.Sleep(47 * time.Millisecond)
						sent := time.Now()
						wantStatus(t, get(routers[on], "/orders/7", who...), http.StatusOK)
						if took := time.Since(sent) - hold; took > 2*hold {
							t.Errorf("%s: request %d of %q waited for %v", name, i, who, took)
						}
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took > 1500*time.Millisecond { // 120 requests, two at a time, are 1.2 s
				t.Errorf("%s: all took %v", name, took)
			}
			errs.want(t, nil)
			wantFree(t, b, "provider:7")
		})
	}
}

// The share is that of the value, for all locks of the request: different values have different names, however long they are,
// and a request without the value has none.
func TestNameOfTheShare(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var waited []holdfast.Event
		trace := &holdfast.Trace{Waiting: func(e holdfast.Event) { waited = append(waited, e) }}
		task, api := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(trace))
		value := func(part ginlock.Part) ginlock.Option { return ginlock.WithShare(part) }
		returns := func(parts []string, err error) ginlock.Option {
			return value(func(*gin.Context) ([]string, error) { return parts, err })
		}
		all := []ginlock.Option{ginlock.WithLock(holdfast.WithShare("all"))}
		long := strings.Repeat("x", 500)
		seen := map[string]string{}
		for name, tt := range map[string]struct {
			opt    ginlock.Option
			lock   []ginlock.Option
			who    string
			body   string
			share  string // "*": a name that no other has
			status int    // else a 409
		}{
			"a value":               {opt: byTenant, who: "acme", share: "acme"},
			"no value":              {opt: byTenant},
			"another type":          {opt: value(func(c *gin.Context) ([]string, error) { c.Set("t", 1.5); return ginlock.Value("t")(c) }), status: 500},
			"an empty value":        {opt: value(func(c *gin.Context) ([]string, error) { c.Set("t", ""); return ginlock.Value("t")(c) })},
			"a header":              {opt: value(ginlock.Header("Authorization")), who: "acme", share: "acme"},
			"no header":             {opt: value(ginlock.Header("Authorization"))},
			"no query parameter":    {opt: value(ginlock.Query("tenant"))},
			"no path parameter":     {opt: value(ginlock.Param("tenant"))},
			"a field":               {opt: value(ginlock.JSON("tenant")), body: `{"tenant": 7}`, share: "7"},
			"no body":               {opt: value(ginlock.JSON("tenant"))},
			"no field":              {opt: value(ginlock.JSON("tenant")), body: `{}`},
			"no field in a field":   {opt: value(ginlock.JSON("tenant", "id")), body: `{"tenant": "x"}`},
			"an empty field":        {opt: value(ginlock.JSON("tenant")), body: `{"tenant": ""}`},
			"a null":                {opt: value(ginlock.JSON("tenant")), body: `{"tenant": null}`},
			"a field that is wrong": {opt: value(ginlock.JSON("tenant")), body: `{"tenant": []}`, status: 400},
			"a field twice":         {opt: value(ginlock.JSON("tenant")), body: `{"tenant": 1, "tenant": 2}`, status: 400},
			"a malformed body":      {opt: value(ginlock.JSON("tenant")), body: `{`, status: 400},
			"of two":                {opt: value(ginlock.Parts(ginlock.Value("tenant"), byID)), who: "acme", share: "acme:7"},
			"of two, one is none":   {opt: value(ginlock.Parts(byID, ginlock.Value("tenant")))},
			"nothing":               {opt: returns(nil, nil)},
			"empty":                 {opt: returns([]string{"a", ""}, nil)},
			"a mistake":             {opt: returns(nil, holdfast.ErrInvalid), status: 400},
			"an error":              {opt: returns(nil, errors.New("no database")), status: 500},
			"one cut":               {opt: returns([]string{"a:b", "c"}, nil), share: "*"},
			"another cut":           {opt: returns([]string{"a", "b:c"}, nil), share: "*"},
			"the longest":           {opt: returns([]string{long[:128]}, nil), share: long[:128]},
			"one more byte":         {opt: returns([]string{long[:129]}, nil), share: "*"},
			"very long":             {opt: returns([]string{long, "1"}, nil), share: "*"},
			"another one":           {opt: returns([]string{long, "2"}, nil), share: "*"},
			"over that of WithLock": {opt: byTenant, lock: all, who: "acme", share: "acme"},
			"else that of WithLock": {opt: byTenant, lock: all, share: "all"},
		} {
			for _, busy := range []string{"order:7", "account:7"} {
				waited = nil
				free := hold(t, task, busy)
				opts := append([]ginlock.Option{tt.opt, ginlock.WithAlso("account", byID)}, tt.lock...)
				req := httptest.NewRequest(http.MethodPost, "/orders/7", strings.NewReader(tt.body))
				if tt.who != "" {
					req.Header.Set("Authorization", tt.who)
				}
				w := send(route(tenant, ginlock.New(api.Locker, "order", byID, opts...), never(t)), req)
				free()
				time.Sleep(time.Second) // the refused call leaves the line in the background, and may be granted the lock first
				if tt.status != 0 {
					if w.Code != tt.status || len(waited) > 0 {
						t.Errorf("%s: got %d and waits %v, want %d", name, w.Code, waited, tt.status)
					}
					continue
				}
				if w.Code != http.StatusConflict || len(waited) != 1 || waited[0].Key != busy {
					t.Errorf("%s: got %d %s and waits %v, want one for %s", name, w.Code, w.Body, waited, busy)
					continue
				}
				got := waited[0].Share
				if other, dup := seen[got]; tt.share == "*" && dup && other != name || tt.share != "*" && got != tt.share {
					t.Errorf("%s: got the share %q, want %q; %q has it too", name, got, tt.share, other)
				}
				seen[got] = name
			}
		}
	})
}

// On several masters there are no shares, and New says so.
func TestShareOnSeveralMasters(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		several, err := redlock.New([]*redis.Client{b.Client(), servertest.NewBubble(t).Client(), servertest.NewBubble(t).Client()})
		if err != nil {
			t.Fatal(err)
		}
		defer several.Shutdown(t.Context())
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "WithShare: ") {
				t.Errorf("panic with %v", err)
			}
		}()
		ginlock.New(several, "order", byID, byTenant)
	})
}
