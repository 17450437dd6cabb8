package cronlock_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/adaptertest"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/robfig/cron/v3"
)

func TestAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		Key: func(name string) string { return holdfast.Key("cron", name) },
		Start: func(t testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			c := cron.New()
			guard := cronlock.New(l, c)
			t.Cleanup(func() { _ = guard.Stop(context.Background()) })
			return func(ctx context.Context, name string) error {
				_, _ = guard.Job(name, func(ctx context.Context) error { work(ctx, name); return nil }) // the second time it exists
				return guard.RunNow(ctx, name)
			}
		},
	})
}
