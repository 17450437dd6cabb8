package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Each hook hears of its own case alone, with the error that the request is answered by, and c.Errors of nothing.
func TestTraceReplacesTheErrorsOfTheContext(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(t *testing.T, b *servertest.Bubble)
		during func(b *servertest.Bubble)
		opts   []ginlock.Option
		status int
		want   string // hook
		err    error
	}{
		"through": {status: http.StatusOK},
		"held": {before: func(t *testing.T, b *servertest.Bubble) {
			if err := b.Redis.Set("order:42", "somebody"); err != nil {
				t.Fatal(err)
			}
		}, status: http.StatusConflict, want: "refused", err: holdfast.ErrNotAcquired},
		"away": {before: cut, status: http.StatusServiceUnavailable, want: "refused", err: holdfast.ErrUnavailable},
		"open": {before: cut, opts: []ginlock.Option{ginlock.WithFailOpen()}, status: http.StatusOK, want: "unlocked",
			err: holdfast.ErrUnavailable},
		"lost": {during: func(b *servertest.Bubble) { b.Redis.Del("order:42") }, status: http.StatusServiceUnavailable, want: "lost",
			err: holdfast.ErrLost},
		"unreleased": {during: func(b *servertest.Bubble) { cut(nil, b) }, status: http.StatusOK, want: "unreleased",
			err: holdfast.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				api := newReplica(t, b)
				var errs errs
				var first, second []string
				hooks := func(seen *[]string) ginlock.Option {
					hook := func(name string) func(*gin.Context, error) {
						return func(c *gin.Context, err error) {
							*seen = append(*seen, name)
							if c.FullPath() != "/orders/:id" || !errors.Is(err, tt.err) {
								t.Errorf("%s of %s: %v", name, c.FullPath(), err)
							}
						}
					}
					return ginlock.WithTrace(&ginlock.Trace{Refused: hook("refused"), Lost: hook("lost"), Unreleased: hook("unreleased"), Unlocked: hook("unlocked")})
				}
				if tt.before != nil {
					tt.before(t, b)
				}
				opts := append(tt.opts, hooks(&first), ginlock.WithTrace(&ginlock.Trace{}), hooks(&second))
				router := route(errs.watch, ginlock.New(api.Locker, "order", byID, opts...), func(c *gin.Context) {
					if tt.during != nil {
						tt.during(b)
					}
					time.Sleep(time.Millisecond)
				})
				wantStatus(t, get(router, "/orders/42"), tt.status)
				want := "[" + tt.want + "]"
				if fmt.Sprint(first) != want || fmt.Sprint(second) != want {
					t.Errorf("got %v and %v, want %s from each Trace", first, second, want)
				}
				errs.want(t, nil)
				for _, link := range b.Links() {
					link.Heal()
				}
			})
		})
	}
}

func cut(_ *testing.T, b *servertest.Bubble) {
	for _, link := range b.Links() {
		link.CutUp()
	}
}

// A Trace that does not hear of a loss leaves it to c.Errors.
func TestTraceReplacesOnlyWhatItHearsOf(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		trace := ginlock.WithTrace(&ginlock.Trace{Refused: func(*gin.Context, error) {}})
		router := route(errs.watch, ginlock.New(api.Locker, "order", byID, trace), func(*gin.Context) { b.Redis.Del("order:42") })
		wantStatus(t, get(router, "/orders/42"), http.StatusServiceUnavailable)
		errs.want(t, holdfast.ErrLost)
	})
}
