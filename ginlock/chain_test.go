package ginlock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestChainRunsUnderTheLocksContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		type tag struct{}
		var inside context.Context
		outside := func(c *gin.Context) {
			c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), tag{}, "outer"))
			before := c.Request.Context()
			c.Next()
			if c.Request.Context() != before || before.Err() != nil {
				t.Error("behind the middleware the request has another context, or one that ended")
			}
			if lockOf(c) != nil {
				t.Error("behind the middleware the request still has a lock")
			}
			if got := c.Request.Header.Get("X-Changed"); got != "yes" {
				t.Errorf("what the handler changed on the request is gone: %q", got)
			}
		}
		router := route(outside, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			inside = c.Request.Context()
			lock := lockOf(c)
			if lock == nil || lock.Key() != "order:42" || len(holdfast.Held(inside)) != 1 {
				t.Fatalf("the request has %v, want order:42 and nothing else", lock)
			}
			if fence(inside) != lock.Token() || lock.Token() == 0 {
				t.Errorf("the request's context has token %d, want %d", fence(inside), lock.Token())
			}
			if inside.Value(tag{}) != "outer" {
				t.Error("the outer context's values are gone")
			}
			wantLocked(t, b, "order:42")
			c.Request = c.Request.WithContext(context.WithValue(inside, tag{}, "inner")).Clone(inside)
			c.Request.Header.Set("X-Changed", "yes")
			ok(c)
		})
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		if inside.Err() == nil || fence(inside) != 0 {
			t.Error("the handler's context still carries a lock after the request")
		}
		wantFree(t, b, "order:42")
	})
}

func TestGinContextSeesTheLockOnlyWithFallback(t *testing.T) {
	for _, fallback := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			api := newReplica(t, b)
			router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
				if lockOf(c) == nil || fence(c.Request.Context()) == 0 {
					t.Error("no lock in the request")
				}
				if got := fence(c) != 0; got != fallback {
					t.Errorf("fallback %v: gin.Context carries the lock: %v", fallback, got)
				}
				if got := c.Done() != nil; got != fallback {
					t.Errorf("fallback %v: gin.Context has a Done: %v", fallback, got)
				}
				b.Redis.Del("order:42")
				<-c.Request.Context().Done()
				if got := c.Err() != nil; got != fallback {
					t.Errorf("fallback %v: gin.Context has an Err after the loss: %v", fallback, got)
				}
			})
			router.ContextWithFallback = fallback
			wantStatus(t, get(router, "/orders/42"), http.StatusServiceUnavailable)
		})
	}
}

func TestCopyEndsWithTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var copied *gin.Context
		router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			copied = c.Copy()
			if fence(copied.Request.Context()) == 0 || lockOf(copied) != lockOf(c) {
				t.Error("the copy has no lock while the handler runs")
			}
			ok(c)
		})
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		if copied.Request.Context().Err() == nil || fence(copied.Request.Context()) != 0 {
			t.Error("the copy's request counts as locked after the handler")
		}
		if lock := lockOf(copied); lock != nil {
			t.Errorf("the copy has %v after the handler", lock)
		}
	})
}

func TestPanicReleasesAndGoesOn(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		outside, inside gin.HandlerFunc // where Recovery is
		status          int             // 0: the panic reaches the server
	}{
		"recovery outside": {gin.RecoveryWithWriter(io.Discard), func(*gin.Context) {}, http.StatusInternalServerError},
		"recovery inside":  {func(*gin.Context) {}, gin.RecoveryWithWriter(io.Discard), http.StatusInternalServerError},
		"no recovery":      {func(*gin.Context) {}, func(*gin.Context) {}, 0},
	} {
		for _, lost := range []bool{false, true} {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				api := newReplica(t, b)
				var seen any
				var w *httptest.ResponseRecorder
				router := route(tt.outside, ginlock.New(api.Locker, "order", byID), tt.inside, func(c *gin.Context) {
					wantLocked(t, b, "order:42")
					if lost {
						b.Redis.Del("order:42")
						<-c.Request.Context().Done()
					}
					panic(boom)
				})
				func() {
					defer func() { seen = recover() }()
					w = get(router, "/orders/42")
				}()
				if tt.status == 0 {
					if seen != boom {
						t.Errorf("%s, lost %v: the server got panic %v, want %v", name, lost, seen, boom)
					}
				} else if w.Code != tt.status || w.Body.Len() > 0 {
					t.Errorf("%s, lost %v: got %d %q, want Recovery's empty %d", name, lost, w.Code, w.Body, tt.status)
				}
				wantFree(t, b, "order:42")
			})
		}
	}
}

func TestHandleContextRunsUnderTheOuterHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api, task := newReplica(t, b, holdfast.WithPrefix("shop:")), newReplica(t, b, holdfast.WithPrefix("shop:"))
		var outer, inner *holdfast.Lock
		mw := ginlock.New(api.Locker, "order", byID, ginlock.WithBusy(ginlock.Wait(500*time.Millisecond)))
		router := gin.New()
		router.GET("/old/:id", mw, func(c *gin.Context) {
			outer = lockOf(c)
			// A lock whose key ends like the one that is looked for.
			err := api.Do(c.Request.Context(), "pre-order:42", func(ctx context.Context) error {
				c.Request = c.Request.WithContext(ctx)
				c.Request.URL.Path = "/orders/42"
				router.HandleContext(c)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			c.Abort() // gin before v1.11 would go on with the other route's handlers
			wantLocked(t, b, "shop:order:42")
		})
		router.GET("/orders/:id", mw, func(c *gin.Context) {
			inner = lockOf(c)
			ok(c)
		})

		begin := time.Now()
		w := get(router, "/old/42")
		wantTook(t, begin, 0)
		wantStatus(t, w, http.StatusOK)
		if got := w.Body.String(); got != "done" {
			t.Errorf("got body %q, want the inner handler's, once", got)
		}
		if !same(outer, inner) {
			t.Errorf("%v outside and %v inside, want the same lock", outer, inner)
		}
		wantFree(t, b, "shop:order:42")

		defer hold(t, task, "order:43")() // another key is another matter
		router.GET("/other/:id", mw, func(c *gin.Context) {
			c.Request.URL.Path = "/orders/43"
			router.HandleContext(c)
			c.Abort()
		})
		begin = time.Now()
		wantStatus(t, get(router, "/other/42"), http.StatusConflict)
		wantTook(t, begin, 500*time.Millisecond)
	})
}

func TestMiddlewareListedTwiceRunsUnderTheOuterHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var got []*holdfast.Lock
		note := func(c *gin.Context) {
			got = append(got, lockOf(c))
			c.Next()
			wantLocked(t, b, "order:42")
			got = append(got, lockOf(c))
		}
		mw := ginlock.New(api.Locker, "order", byID)
		wantStatus(t, get(route(mw, note, mw, note, ok), "/orders/42"), http.StatusOK)
		if len(got) != 4 || !same(got[0], got[1]) || !same(got[0], got[2]) || !same(got[0], got[3]) {
			t.Errorf("got %v, want one lock throughout", got)
		}
		if n := b.Commands()["evalsha"]; n > 2 {
			t.Errorf("%d commands, want 2", n)
		}
		wantFree(t, b, "order:42")
	})
}

// A chain that others may run beside must not go on as if it were alone.
func TestMiddlewareUnderALockThatOthersMayHave(t *testing.T) {
	limit := func(n int) []ginlock.Option { return []ginlock.Option{ginlock.WithLimit(n)} }
	shared := []ginlock.Option{ginlock.WithLock(holdfast.WithShared())}
	for name, tt := range map[string]struct {
		outer, inner []ginlock.Option
		runs         bool
	}{
		"a limit, wanted alone":                {limit(3), nil, false},
		"a limit, wanted with a smaller one":   {limit(3), limit(2), false},
		"a limit, wanted with it":              {limit(3), limit(3), true},
		"a reader's, wanted alone":             {shared, nil, false},
		"a reader's, wanted as a reader":       {shared, shared, true},
		"alone, wanted with a limit":           {nil, limit(3), true},
		"alone, wanted as a reader":            {nil, shared, true},
		"alone, wanted with a handle to it":    {nil, []ginlock.Option{ginlock.WithLock(holdfast.WithReentrancy())}, true},
		"a limit, wanted alone by its handle":  {limit(3), []ginlock.Option{ginlock.WithLock(holdfast.WithReentrancy())}, false},
		"a limit, and its middleware is twice": {limit(2), limit(2), true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				api := newReplica(t, b)
				var errs errs
				var outer *holdfast.Lock
				note := func(c *gin.Context) { outer = lockOf(c); c.Next(); wantLocked(t, b, "order:42") }
				last := func(c *gin.Context) {
					if lock := lockOf(c); !same(outer, lock) {
						t.Errorf("got %v, want the outer %v", lock, outer)
					}
					ok(c)
				}
				if !tt.runs {
					last = never(t)
				}
				router := route(errs.watch, ginlock.New(api.Locker, "order", byID, tt.outer...), note,
					ginlock.New(api.Locker, "order", byID, tt.inner...), last)
				w := get(router, "/orders/42")
				if tt.runs {
					wantStatus(t, w, http.StatusOK)
					errs.want(t, nil)
				} else {
					wantProblem(t, w, http.StatusInternalServerError, "", "The request failed")
					errs.want(t, holdfast.ErrSelfDeadlock)
				}
				wantFree(t, b, "order:42")
			})
		})
	}
}

func TestTwoKeysAreHeldTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := route(ginlock.New(api.Locker, "customer", ginlock.Query("customer")), func(c *gin.Context) {
			c.Next()
			if lock := lockOf(c); lock == nil || lock.Key() != "customer:7" {
				t.Errorf("between the two the request has %v, want customer:7", lock)
			}
			wantFree(t, b, "order:42")
		}, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			if held := holdfast.Held(c.Request.Context()); len(held) != 2 || held[0].Key() != "order:42" {
				t.Errorf("the context carries %v, want both, order:42 first", held)
			}
			ok(c)
		})
		wantStatus(t, get(router, "/orders/42?customer=7"), http.StatusOK)
		wantFree(t, b, "customer:7")
	})
}

// A timeout middleware lets go of a handler that goes on. Outside of the lock, which then outlives the
// response.
func TestLockOutlivesAnOuterTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		g := newGated()
		router := route(ginlock.New(api.Locker, "order", byID), g.handle)
		h := http.TimeoutHandler(router, time.Second, "too slow")
		go func() { <-g.entered }()
		wantStatus(t, get(h, "/orders/42"), http.StatusServiceUnavailable)
		time.Sleep(time.Minute)
		wantLocked(t, b, "order:42")
		wantStatus(t, get(router, "/orders/42"), http.StatusConflict)
		close(g.leave)
		synctest.Wait()
		wantFree(t, b, "order:42")
	})
}

func TestUploadsLeaveNoTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		file, err := form.CreateFormFile("f", "f.bin")
		if err != nil {
			t.Fatal(err)
		}
		file.Write(make([]byte, 1<<20))
		form.Close()
		router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			if _, err := c.FormFile("f"); err != nil {
				t.Error(err)
			}
			if files, _ := os.ReadDir(dir); len(files) == 0 {
				t.Error("the upload was kept in memory: this test tests nothing")
			}
			ok(c)
		})
		router.MaxMultipartMemory = 1 << 10
		s := serve(t, router)
		resp, err := s.Post("http://127.0.0.1/orders/42", form.FormDataContentType(), &body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		synctest.Wait()
		if files, _ := os.ReadDir(dir); len(files) > 0 {
			t.Errorf("%v is left in %s", files, dir)
		}
	})
}

// same reports whether both are handles to one hold.
func same(a, b *holdfast.Lock) bool {
	return a != nil && b != nil && a.Key() == b.Key() && a.Token() == b.Token()
}
