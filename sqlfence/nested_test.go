package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// A transaction for the same lock inside another one waits for itself, which no database can know.
func TestATransactionInsideAnotherFailsAtOnce(t *testing.T) {
	for _, d := range dialects {
		bubble(t, func(t *testing.T) {
			fake, db := newDB(t)
			f, elsewhere := newFence(t, d), newFence(t, d)
			_, second := newDB(t)
			never := func(context.Context, *sql.Tx) error { t.Error("fn runs"); return nil }
			ways := map[string]func(ctx context.Context) error{
				"WithTx": func(ctx context.Context) error { return f.WithTx(ctx, db, nil, never) },
				"BeginTx": func(ctx context.Context) error {
					_, err := f.BeginTx(ctx, db, nil)
					return err
				},
				"Advance": func(ctx context.Context) error { return f.Advance(ctx, db) },
			}
			var late context.Context
			for name, inside := range ways {
				var plain, marked, beside, deep, other error
				err := f.WithTx(token(7), db, nil, func(ctx context.Context, tx *sql.Tx) error {
					late = ctx
					plain = inside(ctx)
					marked = inside(sqlfence.Mark{Resource: "a", Token: 7}.In(context.WithoutCancel(ctx)))
					beside = inside(parallel(ctx, f))
					// Another database is not waited for, and what is inside there is inside here.
					other = elsewhere.WithTx(ctx, second, nil, func(ctx context.Context, tx *sql.Tx) error {
						deep = inside(ctx)
						return nil
					})
					// The transaction itself may be guarded once more.
					if err := f.Guard(ctx, tx); err != nil {
						t.Errorf("%v, Guard: %v", d, err)
					}
					_, err := f.Marks(ctx)
					return err
				})
				if err != nil || other != nil {
					t.Errorf("%v, %s: got %v and %v", d, name, err, other)
				}
				for what, err := range map[string]error{"": plain, "marked": marked, "parallel": beside, "deep": deep} {
					if !errors.Is(err, holdfast.ErrSelfDeadlock) {
						t.Errorf("%v, %s, %s: got %v, want %v", d, name, what, err, holdfast.ErrSelfDeadlock)
					}
				}
				if n := fake.count("begin"); n != 1 {
					t.Errorf("%v, %s: %d transactions were begun: %s", d, name, n, fake.ops())
				}
				fake.log = nil
			}
			// The context that outlives the transaction is as good as any other.
			if err := f.Advance(late, db); err != nil {
				t.Errorf("%v, afterwards: %v", d, err)
			}
			// So is the one of an attempt that has been repeated, and of one that ended by a panic.
			func() {
				defer func() { _ = recover() }()
				_ = f.WithTx(token(7), db, nil, func(ctx context.Context, _ *sql.Tx) error { late = ctx; panic("mine") })
			}()
			if err := f.Advance(late, db); err != nil {
				t.Errorf("%v, after a panic: %v", d, err)
			}
		})
	}
}

// The first example of the documentation, nested.
func TestNestedUnderDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		_, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		pay := func(ctx context.Context) error { return f.WithTx(ctx, db, nil, write) }
		err = locker.Do(background, "order:42", func(ctx context.Context) error {
			return f.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error { return pay(ctx) })
		})
		if !errors.Is(err, holdfast.ErrSelfDeadlock) {
			t.Errorf("got %v, want %v", err, holdfast.ErrSelfDeadlock)
		}
	})
}
