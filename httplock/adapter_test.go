package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/adaptertest"
	"github.com/holdfast-go/holdfast/httplock"
)

func orderKey(name string) string { return holdfast.Key("order", name) }

// note keeps the error that a hook reports in the context of its request.
type note struct{}

var noting = httplock.WithTrace(&httplock.Trace{Refused: takeNote, Lost: takeNote})

func takeNote(r *http.Request, err error) { *r.Context().Value(note{}).(*error) = err }

func orderRequest(ctx context.Context, name string, err *error) *http.Request {
	return httptest.NewRequestWithContext(context.WithValue(ctx, note{}, err), http.MethodGet, "/orders?id="+url.QueryEscape(name), nil)
}

func TestMiddlewareIsAnAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		Key: orderKey,
		Start: func(_ testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			h := httplock.Middleware(l, "order", httplock.Query("id"), noting)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				work(r.Context(), r.URL.Query().Get("id"))
			}))
			return func(ctx context.Context, name string) (err error) {
				h.ServeHTTP(httptest.NewRecorder(), orderRequest(ctx, name, &err))
				return err
			}
		},
	})
}

func TestTransportIsAnAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		Key: orderKey,
		Start: func(_ testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			transport := httplock.Transport(l, "order", httplock.Query("id"), sender(func(r *http.Request) (*http.Response, error) {
				work(r.Context(), r.URL.Query().Get("id"))
				return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
			}), noting)
			return func(ctx context.Context, name string) (err error) {
				_, failed := transport.RoundTrip(orderRequest(ctx, name, &err))
				if failed != nil {
					return failed
				}
				return err
			}
		},
	})
}
