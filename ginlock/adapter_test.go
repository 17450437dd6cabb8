package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/adaptertest"
	"github.com/holdfast-go/holdfast/ginlock"
)

func TestAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		Key: func(name string) string { return holdfast.Key("order", name) },
		Start: func(_ testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			type result struct{}
			tell := func(c *gin.Context, err error) { *c.Request.Context().Value(result{}).(*error) = err }
			router := gin.New()
			router.GET("/orders", ginlock.New(l, "order", ginlock.Query("id"), ginlock.WithTrace(&ginlock.Trace{Refused: tell, Lost: tell})),
				func(c *gin.Context) { work(c.Request.Context(), c.Query("id")) })
			return func(ctx context.Context, name string) (err error) {
				ctx = context.WithValue(ctx, result{}, &err)
				router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/orders?id="+url.QueryEscape(name), nil))
				return err
			}
		},
	})
}
