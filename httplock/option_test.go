package httplock_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// want is what the panic says, all of it in one error. No option and no part panics by itself.
func TestMistakesAreJudgedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		l := newReplica(t, b).Locker
		answer := httplock.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) {})
		middleware := func(l *holdfast.Locker, resource string, part httplock.Part, opts ...httplock.Option) {
			httplock.Middleware(l, resource, part, opts...)
		}
		transport := func(l *holdfast.Locker, resource string, part httplock.Part, opts ...httplock.Option) {
			httplock.Transport(l, resource, part, nil, opts...)
		}
		for _, tt := range []struct {
			make     func(*holdfast.Locker, string, httplock.Part, ...httplock.Option)
			locker   *holdfast.Locker
			resource string
			part     httplock.Part
			opts     []httplock.Option
			want     []string
		}{
			{middleware, nil, "", nil, []httplock.Option{nil, httplock.WithTrace(nil), httplock.WithErrorHandler(nil), httplock.WithBusy(httplock.Wait(-time.Second))},
				[]string{"httplock: Middleware: ", "no Locker", "no resource", "no part", "option 1 of 4 is nil", "WithTrace(nil)", "WithErrorHandler(nil)", "WithBusy(Wait(-1s)): negative"}},
			{middleware, l, "order", httplock.Path(""), nil, []string{"no part"}},
			{middleware, l, "order", httplock.Query(""), nil, []string{"no part"}},
			{middleware, l, "order", httplock.Header(""), nil, []string{"no part"}},
			{middleware, l, "order", httplock.Context(nil), nil, []string{"no part"}},
			{middleware, l, "order", httplock.JSON("a", ""), nil, []string{"no part"}},
			{middleware, l, "order", httplock.Body(nil), nil, []string{"no part"}},
			{middleware, l, "order", httplock.Parts(byID, nil), nil, []string{"no part"}},
			{middleware, l, "order", byID, []httplock.Option{httplock.WithAlso("", byID), httplock.WithShare(nil)}, []string{"WithAlso: no resource", "WithShare: no part"}},
			{middleware, l, "order", byID, []httplock.Option{httplock.WithLimit(0)}, []string{"WithLock: ", "WithLimit(0)"}},
			{transport, l, "api", httplock.Host, []httplock.Option{answer}, []string{"httplock: Transport: ", "are for a middleware"}},
			{transport, l, "api", httplock.Host, []httplock.Option{httplock.WithBusy(httplock.Wait(0).RetryAfterLease())}, []string{"are for a middleware"}},
			{transport, nil, "api", nil, nil, []string{"no Locker", "no part"}},
		} {
			func() {
				defer func() {
					err, _ := recover().(error)
					for _, want := range tt.want {
						if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
							t.Errorf("panic with %v, want %q", err, want)
						}
					}
				}()
				tt.make(tt.locker, tt.resource, tt.part, tt.opts...)
			}()
		}
		middleware(l, "order", byID, answer, httplock.WithBusy(httplock.Wait(0).RetryAfterLease()))
		transport(l, "api", httplock.Host, httplock.WithBusy(httplock.Wait(0)))
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent", n)
		}
	})
}
