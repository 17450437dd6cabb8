package gocronlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/adaptertest"
	"github.com/holdfast-go/holdfast/cronlock/gocronlock"
)

func TestAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		NoLock: true,
		Key:    func(name string) string { return holdfast.Key("cron", name) },
		Start: func(_ testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			locker := gocronlock.New(l, time.Millisecond)
			return func(ctx context.Context, name string) (lost error) { // as gocron does
				lock, err := locker.Lock(ctx, name)
				if err != nil {
					return err
				}
				defer func() {
					if err := lock.Unlock(context.WithoutCancel(ctx)); errors.Is(err, holdfast.ErrLost) {
						lost = err
					}
				}()
				work(ctx, name)
				return nil
			}
		},
	})
}
