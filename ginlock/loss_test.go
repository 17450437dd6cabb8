package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestLossEndsTheContextAndIsReported(t *testing.T) {
	const unknown = "outcome is unknown"
	for name, tt := range map[string]struct {
		lose    func(b *servertest.Bubble, lock *holdfast.Lock)
		respond func(*gin.Context)
		opts    []ginlock.Option
		status  int
		body    string // "" for problem details
	}{
		"deleted": {
			lose:   func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			status: http.StatusServiceUnavailable,
		},
		"taken by another": {
			lose:   func(b *servertest.Bubble, _ *holdfast.Lock) { _ = b.Redis.Set("order:42", "a rival") },
			status: http.StatusServiceUnavailable,
		},
		"redis gone": {
			lose: func(b *servertest.Bubble, _ *holdfast.Lock) {
				for _, link := range b.Links() {
					link.CutUp()
				}
			},
			status: http.StatusServiceUnavailable,
		},
		"held for too long": {
			opts:   []ginlock.Option{ginlock.WithLock(holdfast.WithMaxHold(20 * time.Second))},
			status: http.StatusServiceUnavailable,
		},
		"without progress": {
			opts:   []ginlock.Option{ginlock.WithLock(holdfast.WithProgress(20 * time.Second))},
			status: http.StatusServiceUnavailable,
		},
		"fail open is for the beginning": {
			lose:   func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			opts:   []ginlock.Option{ginlock.WithFailOpen()},
			status: http.StatusServiceUnavailable,
		},
		"with a response": {
			lose:    func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			respond: func(c *gin.Context) { c.String(http.StatusOK, "half of it") },
			status:  http.StatusOK, body: "half of it",
		},
		"with a response, which the error handler must not see": {
			lose:    func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			respond: func(c *gin.Context) { c.String(http.StatusOK, "half of it") },
			opts: []ginlock.Option{ginlock.WithErrorHandler(func(c *gin.Context, err error) {
				c.String(http.StatusOK, "and more")
			})},
			status: http.StatusOK, body: "half of it",
		},
		"with a status": {
			lose:    func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			respond: func(c *gin.Context) { c.Status(http.StatusNoContent) },
			status:  http.StatusNoContent, body: "-",
		},
		"with an error handler": {
			lose: func(b *servertest.Bubble, _ *holdfast.Lock) { b.Redis.Del("order:42") },
			opts: []ginlock.Option{ginlock.WithErrorHandler(func(c *gin.Context, err error) {
				if errors.Is(err, holdfast.ErrLost) {
					c.String(http.StatusGone, "lost")
				}
			})},
			status: http.StatusGone, body: "lost",
		},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			api := newReplica(t, b)
			var errs errs
			router := route(errs.watch, ginlock.New(api.Locker, "order", byID, tt.opts...), func(c *gin.Context) {
				if tt.lose != nil {
					tt.lose(b, lockOf(c))
				}
				ctx := c.Request.Context()
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), holdfast.ErrLost) {
					t.Errorf("%s: the context ended because of %v, want ErrLost", name, context.Cause(ctx))
				}
				if tt.respond != nil {
					tt.respond(c)
				}
			})
			w := get(router, "/orders/42")
			if tt.body == "" {
				wantProblem(t, w, tt.status, "", unknown)
			} else if got := w.Body.String(); w.Code != tt.status || got != tt.body && tt.body != "-" {
				t.Errorf("%s: got %d %q, want %d %q", name, w.Code, got, tt.status, tt.body)
			}
			errs.want(t, holdfast.ErrLost)
			for _, link := range b.Links() {
				link.Heal()
			}
		})
	}
}

func TestLossThatOnlyTheReleaseFindsIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), func(*gin.Context) { b.Redis.Del("order:42") })
		wantProblem(t, get(router, "/orders/42"), http.StatusServiceUnavailable, "", "outcome is unknown")
		errs.want(t, holdfast.ErrLost)
	})
}

func TestShutdownUnderAHandlerIsALoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := api.Shutdown(ctx); err == nil {
				t.Error("Shutdown returned under a live handler")
			}
			<-c.Request.Context().Done()
		})
		wantProblem(t, get(router, "/orders/42"), http.StatusServiceUnavailable, "", "outcome is unknown")
		if len(errs.all) != 1 || !errors.Is(errs.all[0], holdfast.ErrClosed) {
			t.Errorf("c.Errors has %v, want ErrClosed", errs.all)
		}
		errs.want(t, holdfast.ErrLost)
		wantFree(t, b, "order:42")
	})
}

func TestFailedReleaseLeavesTheResponseAloneAndIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), func(*gin.Context) { api.link.CutUp() })
		begin := time.Now()
		w := get(router, "/orders/42")
		wantTook(t, begin, time.Second)
		wantStatus(t, w, http.StatusOK)
		errs.want(t, holdfast.ErrUnavailable)
		wantLocked(t, b, "order:42")
		api.link.Heal()
		time.Sleep(2 * time.Second)
		wantFree(t, b, "order:42")
	})
}

func TestReleasedByTheHandlerIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			if err := lockOf(c).Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		w := get(router, "/orders/42")
		if w.Code != http.StatusOK || w.Body.Len() > 0 {
			t.Errorf("got %d %q, want an empty 200", w.Code, w.Body)
		}
		errs.want(t, nil)
	})
}

// stale is what a fence of a database returns: an error of its own, which matches holdfast.ErrLost.
type stale struct{}

func (stale) Error() string        { return "token 1 is stale: the database has seen 2" }
func (stale) Is(target error) bool { return target == holdfast.ErrLost }

func TestRespondToAFenceIsTheAnswerToALoss(t *testing.T) {
	for _, lost := range []bool{false, true} { // what the release finds out as well
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			api := newReplica(t, b)
			var errs errs
			s := serve(t, route(errs.watch, ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
				if lost {
					b.Redis.Del("order:42")
				}
				err := fmt.Errorf("pay: %w", stale{})
				_ = c.Error(err)
				ginlock.Respond(c, err)
			}))
			status, body, err := s.fetch(context.Background(), "/orders/42")
			if err != nil || status != http.StatusServiceUnavailable || strings.Count(body, "outcome is unknown") != 1 || strings.Contains(body, "stale") {
				t.Errorf("lost %v: got %d %q, %v, want 503, once, and no word of the fence", lost, status, body, err)
			}
			if len(errs.all) != 1 || !errors.As(errs.all[0], &stale{}) {
				t.Errorf("lost %v: c.Errors has %v, want the handler's alone", lost, errs.all)
			}
			s.wantQuiet(t)
		})
	}
	w := httptest.NewRecorder()
	c, _ := gin.CreateTestContext(w)
	ginlock.Respond(c, errors.Join(stale{}, holdfast.ErrUnavailable)) // the loss counts: something ran
	wantProblem(t, w, http.StatusServiceUnavailable, "", "outcome is unknown")
}

func TestReleaseInBackgroundIsNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		background := ginlock.WithLock(holdfast.WithReleaseInBackground())
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID, background), func(c *gin.Context) { api.link.CutUp(); ok(c) })
		begin := time.Now()
		wantStatus(t, get(router, "/orders/42"), http.StatusOK)
		wantTook(t, begin, 0)
		errs.want(t, nil)
		api.link.Heal()
		time.Sleep(5 * time.Second)
		wantFree(t, b, "order:42")

		known := route(errs.watch, ginlock.New(api.Locker, "order", byID, background), func(c *gin.Context) {
			b.Redis.Del("order:42")
			<-c.Request.Context().Done() // a renewal finds the loss
		})
		wantProblem(t, get(known, "/orders/42"), http.StatusServiceUnavailable, "", "outcome is unknown")
		errs.want(t, holdfast.ErrLost)
	})
}

// A driver may tell a handler of a loss as context.Canceled.
func TestRespondLooksAtTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			b.Redis.Del("order:42")
			<-c.Request.Context().Done()
			ginlock.Respond(c, c.Request.Context().Err())
		})
		wantProblem(t, get(router, "/orders/42"), http.StatusServiceUnavailable, "", "outcome is unknown")
	})
}

// So it may of a lock that a Shutdown gave up.
func TestRespondLooksAtAnAbandonedLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		router := route(ginlock.New(api.Locker, "order", byID), func(c *gin.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = api.Shutdown(ctx)
			ginlock.Respond(c, c.Request.Context().Err())
		})
		wantProblem(t, get(router, "/orders/42"), http.StatusServiceUnavailable, "", "outcome is unknown")
	})
}
