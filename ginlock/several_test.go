package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// transfer is from the account of the path, which requests name a, to the one of the query, b.
func transfer(r *replica, opts ...ginlock.Option) gin.HandlerFunc {
	return ginlock.New(r.Locker, "account", byID, append([]ginlock.Option{ginlock.WithAlso("account", ginlock.Query("to"))}, opts...)...)
}

// Transfers in both directions, on two replicas, never overlap and never wait in a circle.
func TestChainRunsUnderAllLocks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		one, two := newReplica(t, b), newReplica(t, b)
		var errs errs
		var mu sync.Mutex
		busy := map[string]bool{}
		set := func(c *gin.Context, to bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, account := range []string{c.Param("id"), c.Query("to")} {
				if busy[account] == to {
					t.Errorf("two transfers of account %s at once", account)
				}
				busy[account] = to
			}
		}
		work := func(c *gin.Context) {
			if held := holdfast.Held(c.Request.Context()); len(held) != 2 || held[0].Key() != "account:b" || held[1].Key() != "account:a" {
				t.Errorf("the request has %v, want the locks of b and a", held)
			}
			set(c, true)
			time.Sleep(100 * time.Millisecond)
			set(c, false)
			ok(c)
		}
		patient := ginlock.WithBusy(ginlock.Wait(time.Minute))
		routers := []*gin.Engine{route(errs.watch, transfer(one, patient), work), route(errs.watch, transfer(two, patient), work)}
		var all sync.WaitGroup
		for i := range 20 {
			path := []string{"/orders/a?to=b", "/orders/b?to=a"}[i/2%2]
			all.Go(func() { wantStatus(t, get(routers[i%2], path), http.StatusOK) })
		}
		all.Wait()
		errs.want(t, nil)
		wantFree(t, b, "account:a")
		wantFree(t, b, "account:b")
	})
}

func TestOneLockForTheSameKeyTwice(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := route(transfer(api), func(c *gin.Context) {
			if held := holdfast.Held(c.Request.Context()); len(held) != 1 {
				t.Errorf("the request has %v, want one lock", held)
			}
			ok(c)
		})
		wantStatus(t, get(router, "/orders/a?to=a"), http.StatusOK)
		wantFree(t, b, "account:a")
	})
}

// Whichever of the locks cannot be had: the request is refused as with one, the error names the key, and nothing stays.
func TestRefusalForOneOfSeveral(t *testing.T) {
	for name, tt := range map[string]struct {
		path    string
		busy    string
		opts    []ginlock.Option
		prepare func(*replica)
		status  int
		retry   string
		detail  string
		took    time.Duration
		seen    error // in c.Errors
	}{
		"the first is busy":  {busy: "a", status: http.StatusConflict, retry: "1", detail: "in progress", took: 100 * time.Millisecond},
		"the second is busy": {busy: "b", status: http.StatusConflict, retry: "1", detail: "in progress", took: 100 * time.Millisecond},
		"without a wait":     {busy: "b", opts: []ginlock.Option{ginlock.WithBusy(ginlock.Wait(0))}, status: http.StatusConflict, retry: "1", detail: "in progress"},
		"by the lease": {busy: "b", opts: []ginlock.Option{ginlock.WithBusy(ginlock.Wait(0).RetryAfterLease())},
			status: http.StatusConflict, retry: "15", detail: "in progress"},
		"a limit":         {busy: "b", opts: []ginlock.Option{ginlock.WithLimit(3)}, status: http.StatusTooManyRequests, retry: "1", detail: "maximum number", took: 100 * time.Millisecond},
		"no second value": {path: "/orders/a", status: http.StatusBadRequest, detail: `no query parameter "to"`},
		"a part of no request": {opts: []ginlock.Option{ginlock.WithAlso("user", ginlock.Value("user"))}, status: http.StatusInternalServerError,
			detail: "could not be determined", seen: errAny},
		"no Redis": {prepare: func(r *replica) { r.link.Refuse(syscall.ECONNREFUSED) }, status: http.StatusServiceUnavailable, retry: "5",
			detail: "could not be taken", took: -1, seen: holdfast.ErrUnavailable},
		"a silent Redis": {prepare: func(r *replica) { r.link.CutUp() }, status: http.StatusServiceUnavailable, retry: "5",
			detail: "could not be taken", took: -1, seen: holdfast.ErrUnavailable},
		"shut down, and fail open": {opts: []ginlock.Option{ginlock.WithFailOpen()}, prepare: func(r *replica) { _ = r.Shutdown(context.Background()) },
			status: http.StatusServiceUnavailable, retry: "5", detail: "could not be taken", seen: holdfast.ErrClosed},
		"busy, and fail open": {busy: "b", opts: []ginlock.Option{ginlock.WithFailOpen()}, status: http.StatusConflict, retry: "1", detail: "in progress",
			took: 100 * time.Millisecond},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			task, api := newReplica(t, b), newReplica(t, b)
			if tt.busy != "" {
				defer hold(t, task, holdfast.Key("account", tt.busy))()
			}
			if tt.prepare != nil {
				tt.prepare(api)
			}
			var errs errs
			var seen error
			tt.opts = append(tt.opts, ginlock.WithErrorHandler(func(_ *gin.Context, err error) { seen = err }))
			router := route(errs.watch, transfer(api, tt.opts...), never(t))
			path := tt.path
			if path == "" {
				path = "/orders/a?to=b"
			}
			begin := time.Now()
			w := get(router, path)
			if took := time.Since(begin); took != tt.took && (tt.took >= 0 || took > 1100*time.Millisecond) {
				t.Errorf("%s: took %v, want %v", name, took, tt.took)
			}
			wantProblem(t, w, tt.status, tt.retry, tt.detail)
			var held *holdfast.HeldError
			if errors.As(seen, &held) && held.Key != "account:"+tt.busy || tt.busy != "" && held == nil {
				t.Errorf("%s: refused by %v, want a HeldError of %s", name, seen, tt.busy)
			}
			if tt.seen == errAny && len(errs.all) == 1 {
				errs.all = nil
			} else {
				errs.want(t, tt.seen)
			}
			api.link.Heal()
			time.Sleep(5 * time.Second)
			for _, key := range []string{"a", "b"} {
				if key != tt.busy {
					wantFree(t, b, "account:"+key)
				}
			}
		})
	}
}

// errAny stands for an error of no sentinel.
var errAny = errors.New("any")

func TestSeveralFailOpen(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, transfer(api, ginlock.WithFailOpen()), func(c *gin.Context) {
			if held := holdfast.Held(c.Request.Context()); len(held) != 0 {
				t.Errorf("the request has %v", held)
			}
			ok(c)
		})
		api.link.Refuse(syscall.ECONNREFUSED)
		wantStatus(t, get(router, "/orders/a?to=b"), http.StatusOK)
		errs.want(t, holdfast.ErrUnavailable)
	})
}

// The loss of any of the locks ends the chain's context, and is told once, with the key. The others are released.
func TestLossOfOneOfSeveral(t *testing.T) {
	for _, lost := range []string{"a", "b"} {
		for _, late := range []bool{false, true} { // only the release finds it
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				api := newReplica(t, b)
				var errs errs
				var told []error
				trace := ginlock.WithTrace(&ginlock.Trace{Lost: func(c *gin.Context, err error) { told = append(told, err); _ = c.Error(err) }})
				router := route(errs.watch, transfer(api, trace), func(c *gin.Context) {
					b.Redis.Del("account:" + lost)
					if late {
						return
					}
					<-c.Request.Context().Done()
					if cause := context.Cause(c.Request.Context()); !errors.Is(cause, holdfast.ErrLost) {
						t.Errorf("the context ended because of %v", cause)
					}
				})
				wantProblem(t, get(router, "/orders/a?to=b"), http.StatusServiceUnavailable, "", "outcome is unknown")
				if len(told) != 1 || !strings.Contains(told[0].Error(), "account:"+lost) {
					t.Errorf("told %v, want one loss of %s", told, lost)
				}
				errs.want(t, holdfast.ErrLost)
				wantFree(t, b, "account:a")
				wantFree(t, b, "account:b")
			})
		}
	}
}

// A lock that goes while the request waits for the next one is taken again: it is no loss of the chain, which has not begun.
func TestLossBeforeTheChainIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		task, api := newReplica(t, b), newReplica(t, b)
		free := hold(t, task, "account:b")
		var errs errs
		router := route(errs.watch, transfer(api, ginlock.WithBusy(ginlock.Wait(time.Minute)), ginlock.WithFailOpen()), ok)
		time.AfterFunc(time.Second, func() { b.Redis.Del("account:a") })
		time.AfterFunc(20*time.Second, func() {
			wantLocked(t, b, "account:a")
			free()
		})
		wantStatus(t, get(router, "/orders/a?to=b"), http.StatusOK)
		errs.want(t, nil)
		wantFree(t, b, "account:a")
	})
}

func TestShutdownUnderSeveralIsALoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, transfer(api), func(c *gin.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = api.Shutdown(ctx)
			<-c.Request.Context().Done()
		})
		wantProblem(t, get(router, "/orders/a?to=b"), http.StatusServiceUnavailable, "", "outcome is unknown")
		errs.want(t, holdfast.ErrLost)
		wantFree(t, b, "account:a")
		wantFree(t, b, "account:b")
	})
}

func TestPanicReleasesSeveral(t *testing.T) {
	boom := errors.New("boom")
	var hook bool // it is a hook that panics, in the release of one of the locks
	trace := &holdfast.Trace{Ended: func(e holdfast.Event) {
		if hook && e.Key == "account:b" {
			panic(boom)
		}
	}}
	for _, hook = range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			api := newReplica(t, b, holdfast.WithTrace(trace))
			var seen any
			router := route(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, p any) { seen = p; c.Status(http.StatusInternalServerError) }),
				transfer(api), func(c *gin.Context) {
					if !hook {
						panic(boom)
					}
				})
			wantStatus(t, get(router, "/orders/a?to=b"), http.StatusInternalServerError)
			if seen != any(boom) {
				t.Errorf("hook %v: Recovery saw %v", hook, seen)
			}
			wantFree(t, b, "account:a")
			wantFree(t, b, "account:b")
		})
	}
}

// The release of several is bounded as that of one is, and detached from a client that has gone.
func TestReleaseOfSeveralIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		ctx, cancel := context.WithCancel(context.Background())
		router := route(errs.watch, transfer(api), func(c *gin.Context) {
			cancel()
			<-c.Request.Context().Done() // the chain hears of the client
			api.link.CutUp()
			time.AfterFunc(500*time.Millisecond, api.link.Heal)
		})
		request := func() *http.Request {
			return httptest.NewRequestWithContext(ctx, http.MethodGet, "/orders/a?to=b", nil)
		}
		wantStatus(t, send(router, request()), http.StatusOK)
		errs.want(t, nil)
		wantFree(t, b, "account:a")
		wantFree(t, b, "account:b")

		ctx, cancel = context.WithCancel(context.Background())
		silent := route(errs.watch, transfer(api), func(c *gin.Context) { cancel(); api.link.CutUp() })
		begin := time.Now()
		wantStatus(t, send(silent, request()), http.StatusOK)
		wantTook(t, begin, time.Second)
		errs.want(t, holdfast.ErrUnavailable)
		api.link.Heal()
		time.Sleep(5 * time.Second)
		wantFree(t, b, "account:a")
	})
}

// A chain that has one of the locks goes on under it, and runs under the others as well.
func TestSeveralUnderALockThatTheRequestHas(t *testing.T) {
	for _, has := range []string{"a", "b", "both"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			task, api := newReplica(t, b, holdfast.WithPrefix("shop:")), newReplica(t, b, holdfast.WithPrefix("shop:"))
			outer := transfer(api)
			if has != "both" {
				outer = ginlock.New(api.Locker, "account", func(*gin.Context) ([]string, error) { return []string{has}, nil })
			}
			var errs errs
			router := route(errs.watch, outer, func(c *gin.Context) {
				before := holdfast.Held(c.Request.Context())
				c.Next()
				if after := holdfast.Held(c.Request.Context()); !slices.Equal(before, after) {
					t.Errorf("has %s: behind the inner chain the request has %v, want %v", has, after, before)
				}
				for _, lock := range before { // the inner chain has not released it
					if c.Query("lose") == "" {
						wantLocked(t, b, lock.Key())
					}
				}
			}, transfer(api), func(c *gin.Context) {
				wantLocked(t, b, "shop:account:a")
				wantLocked(t, b, "shop:account:b")
				if held := holdfast.Held(c.Request.Context()); len(held) != 2 {
					t.Errorf("has %s: the request has %v, want both", has, held)
				}
				if c.Query("lose") != "" {
					b.Redis.Del("shop:account:" + c.Query("lose"))
					<-c.Request.Context().Done()
				}
			})
			wantStatus(t, get(router, "/orders/a?to=b"), http.StatusOK)
			errs.want(t, nil)
			for _, lost := range []string{"a", "b"} {
				wantStatus(t, get(router, "/orders/a?to=b&lose="+lost), http.StatusServiceUnavailable)
				errs.want(t, holdfast.ErrLost) // once
			}
			wantFree(t, b, "shop:account:a")
			wantFree(t, b, "shop:account:b")
			if has != "both" {
				defer hold(t, task, "account:"+map[string]string{"a": "b", "b": "a"}[has])()
				busy := route(outer, transfer(api), never(t))
				wantProblem(t, get(busy, "/orders/a?to=b"), http.StatusConflict, "1", "in progress")
			}
		})
	}
}

// A chain that shares a lock cannot have it alone as well, and must not run as if it had.
func TestSeveralUnderASharedLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "account", byID, ginlock.WithLimit(3)), transfer(api), never(t))
		wantProblem(t, get(router, "/orders/a?to=b"), http.StatusInternalServerError, "", "The request failed")
		errs.want(t, holdfast.ErrSelfDeadlock)
		synctest.Wait() // b was tried, and is given back
		wantFree(t, b, "account:a")
		wantFree(t, b, "account:b")
	})
}

// Both fields of one body, which the handler still reads.
func TestSeveralFieldsOfABody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := route(ginlock.New(api.Locker, "account", ginlock.JSON("from"), ginlock.WithAlso("account", ginlock.JSON("to"))), func(c *gin.Context) {
			wantLocked(t, b, "account:7")
			wantLocked(t, b, "account:8")
			body, err := io.ReadAll(c.Request.Body)
			c.String(http.StatusOK, fmt.Sprint(string(body), err))
		})
		const body = `{"from": 8, "to": 7}`
		if w := send(router, httptest.NewRequest(http.MethodPost, "/orders/1", strings.NewReader(body))); w.Body.String() != body+"<nil>" {
			t.Errorf("the handler read %d %q", w.Code, w.Body)
		}
	})
}
