package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// A lock that others may hold too is passed over, and never silently alone; one that was lost still keeps the write away.
func TestLocksWithALimitDoNotFence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		f := newFence(t, sqlfence.Postgres)
		write := func(context.Context, *sql.Tx) error { return nil }
		for _, o := range []holdfast.CallOption{holdfast.WithLimit(5), holdfast.WithShared()} {
			fake, db := newDB(t)
			permit, err := locker.Acquire(background, "tenant:7", o)
			if err != nil {
				t.Fatal(err)
			}
			ctx := permit.Context(background)
			if err := f.WithTx(ctx, db, nil, write); !errors.Is(err, sqlfence.ErrNoToken) || !strings.Contains(err.Error(), `"tenant:7"`) {
				t.Errorf("with a permit alone: %v", err)
			}
			if got := fake.ops(); slices.Contains(strings.Fields(got), "raise") {
				t.Errorf("got %s", got)
			}
			order, err := locker.Acquire(ctx, "order:42")
			if err != nil {
				t.Fatal(err)
			}
			inner := order.Context(ctx)
			if err := f.WithTx(inner, db, nil, write); err != nil {
				t.Errorf("with a permit and a lock: %v", err)
			}
			if got := fake.ops(); strings.Count(got, "raise") != 1 {
				t.Errorf("got %s, want the order's token alone", got)
			}
			if err := permit.Release(background); err != nil {
				t.Error(err)
			}
			if err := f.WithTx(inner, db, nil, write); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("with a permit that is over: %v", err)
			}
			if err := order.Release(background); err != nil {
				t.Error(err)
			}
		}
	})
}

// Of the locks of one call, the one that is held alone guards the write, whichever comes first.
func TestOnlyTheExclusiveLockOfACallFences(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		f := newFence(t, sqlfence.Postgres)
		write := func(context.Context, *sql.Tx) error { return nil }
		for _, o := range []holdfast.CallOption{holdfast.WithLimit(20), holdfast.WithShared()} {
			for _, others := range []string{"a", "z"} {
				fake, db := newDB(t)
				err := locker.DoAll(background, []string{"order:42", others}, func(ctx context.Context) error {
					return f.WithTx(ctx, db, nil, write)
				}, holdfast.OnKey(others, o))
				if _, guarded := fake.rows["order:42"]; err != nil || !guarded || len(fake.rows) != 1 {
					t.Errorf("guarded by %v, %v, want order:42 alone", fake.rows, err)
				}
				err = locker.DoAll(background, []string{"order:42", others}, func(ctx context.Context) error {
					return f.WithTx(ctx, db, nil, write)
				}, o)
				if !errors.Is(err, sqlfence.ErrNoToken) {
					t.Errorf("with two that others may hold too: %v", err)
				}
			}
		}
	})
}
