package adaptertest

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/core"
)

func key(name string) string { return holdfast.Key("unit", name) }

type (
	work = func(ctx context.Context, name string)
	runs = func(ctx context.Context, name string) error
)

// straight is the adapter of a framework that calls functions.
func straight(_ testing.TB, l *holdfast.Locker, w work) runs {
	return func(ctx context.Context, name string) error {
		if name == "" {
			return errors.New("no name")
		}
		ran := false
		err := l.Do(ctx, key(name), func(ctx context.Context) error { ran = true; w(ctx, name); return nil })
		if ran && !errors.Is(err, holdfast.ErrLost) {
			return nil
		}
		return err
	}
}

func TestStraight(t *testing.T) { Test(t, Adapter{Start: straight, Key: key}) }

func TestStraightInRealTime(t *testing.T) {
	Test(t, Adapter{Start: straight, Key: key, RealTime: true})
}

// Each of these adapters is broken, and a scenario says so.
func TestBrokenAdapters(t *testing.T) {
	each := func(run func(ctx context.Context, l *holdfast.Locker, w work, name string) error) Adapter {
		return Adapter{Key: key, Start: func(_ testing.TB, l *holdfast.Locker, w work) runs {
			return func(ctx context.Context, name string) error { return run(ctx, l, w, name) }
		}}
	}
	for _, broken := range []struct {
		what, caught string
		Adapter
	}{
		{"takes no lock", "OneAtATime", each(func(ctx context.Context, _ *holdfast.Locker, w work, name string) error {
			w(ctx, name)
			return nil
		})},
		{"runs the work that it could not lock", "BusyIsRefused", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			err := l.Do(ctx, key(name), func(ctx context.Context) error { w(ctx, name); return nil })
			if errors.Is(err, holdfast.ErrNotAcquired) {
				w(ctx, name)
			}
			return err
		})},
		{"runs unlocked in an outage", "OutageIsRefused", each(failOpen)},
		{"runs unlocked while Redis hangs", "HangIsRefused", each(failOpen)},
		{"hides the reason of a refusal", "BusyIsRefused", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			if err := straight(nil, l, w)(ctx, name); err != nil {
				return errors.New("try again")
			}
			return nil
		})},
		{"gives the work the context of its caller", "WorkHasTheLock", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, key(name), func(context.Context) error { w(ctx, name); return nil })
		})},
		{"has one lock for all names", "NamesDiffer", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, "unit", func(ctx context.Context) error { w(ctx, name); return nil })
		})},
		{"does not escape names", "NamesDiffer", Adapter{Key: func(name string) string { return "unit:" + name }, Start: func(_ testing.TB, l *holdfast.Locker, w work) runs {
			return func(ctx context.Context, name string) error {
				return l.Do(ctx, "unit:"+name, func(ctx context.Context) error { w(ctx, name); return nil })
			}
		}}},
		{"does not renew", "LeaseIsRenewed", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, key(name), func(ctx context.Context) error { w(ctx, name); return nil }, holdfast.WithMaxHold(lease))
		})},
		{"keeps the lock of work that panics", "PanicReleases", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			lock, err := l.Acquire(ctx, key(name))
			if err != nil {
				return err
			}
			w(lock.Context(ctx), name)
			return lock.Release(context.WithoutCancel(ctx))
		})},
		{"waits for the lock though its caller has left", "CallerLeavesWhileWaiting", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return straight(nil, l, w)(context.WithoutCancel(ctx), name)
		})},
		{"releases when its caller leaves", "CallerLeavesWhileWorking", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			lock, err := l.Acquire(ctx, key(name))
			if err != nil {
				return err
			}
			stop := context.AfterFunc(ctx, func() { _ = lock.Release(context.Background()) })
			w(lock.Context(ctx), name)
			if stop() {
				return lock.Release(context.Background())
			}
			return nil
		})},
		{"hides a loss", "LossIsReported", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			if err := straight(nil, l, w)(ctx, name); !errors.Is(err, holdfast.ErrLost) {
				return err
			}
			return nil
		})},
		{"has work go on after a loss", "LossIsReported", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, key(name), func(ctx context.Context) error { w(context.WithoutCancel(ctx), name); return nil })
		})},
		{"loses work that it has done", "OutageAtTheEndIsNoRefusal", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, key(name), func(ctx context.Context) error { w(ctx, name); return nil })
		})},
		{"looks for a loss before the release", "LossAtTheEndIsReported", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			var lost error
			err := l.Do(ctx, key(name), func(ctx context.Context) error { w(ctx, name); lost = context.Cause(ctx); return nil })
			if errors.Is(err, holdfast.ErrLost) {
				return lost
			}
			return err
		})},
		{"runs work again after a loss", "LossIsReported", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			err := straight(nil, l, w)(ctx, name)
			if errors.Is(err, holdfast.ErrLost) {
				_ = straight(nil, l, w)(ctx, name)
			}
			return err
		})},
		{"answers a panic with success", "PanicReleases", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			defer func() { _ = recover() }()
			return straight(nil, l, w)(ctx, name)
		})},
		{"makes one key of all work without a name", "EmptyNameIsRefused", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			return l.Do(ctx, key(name), func(ctx context.Context) error { w(ctx, name); return nil })
		})},
		{"answers with success after Shutdown", "ShutdownWaitsAndRefuses", each(func(ctx context.Context, l *holdfast.Locker, w work, name string) error {
			err := straight(nil, l, w)(ctx, name)
			if errors.Is(err, holdfast.ErrClosed) {
				return nil
			}
			return err
		})},
	} {
		t.Run(broken.what, func(t *testing.T) {
			t.Parallel()
			for _, s := range scenarios {
				if s.name != broken.caught {
					continue
				}
				var err error
				synctest.Test(t, func(t *testing.T) { err = s.play(newStage(quiet{t}, broken.Adapter)) })
				if err == nil {
					t.Fatalf("%s passes", s.name)
				}
				t.Log(err)
				return
			}
			t.Fatalf("there is no scenario %s", broken.caught)
		})
	}
}

// quiet does not fail for what a broken adapter leaves behind.
type quiet struct{ *testing.T }

func (quiet) Errorf(string, ...any) {}

func failOpen(ctx context.Context, l *holdfast.Locker, w work, name string) error {
	err := straight(nil, l, w)(ctx, name)
	if errors.Is(err, holdfast.ErrUnavailable) {
		w(ctx, name)
	}
	return err
}

// The scenarios in real time mostly wait.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16")
	os.Exit(m.Run())
}
