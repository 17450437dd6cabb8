package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// A lock that is lost while fn runs keeps it from committing, and from being repeated.
func TestNothingIsCommittedWithALockThatWasLost(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "deadlock": stateError("40P01")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				locker, err := holdfast.New(servertest.NewBubble(t).Client())
				if err != nil {
					t.Fatal(err)
				}
				defer locker.Shutdown(background)
				lock, err := locker.Acquire(background, "order:42", holdfast.WithTTL(time.Second), holdfast.WithoutRenewal())
				if err != nil {
					t.Fatal(err)
				}
				fake, db := newDB(t)
				f := newFence(t, sqlfence.Postgres)
				// This context does not end with the lock.
				ctx := context.WithoutCancel(lock.Context(background))
				err = f.WithTx(ctx, db, nil, func(context.Context, *sql.Tx) error { time.Sleep(2 * time.Second); return result })
				if !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("got %v, want %v", err, holdfast.ErrLost)
				}
				if got, want := fake.ops(), "begin raise rollback"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if err := lock.Release(background); !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("Release: got %v, want %v", err, holdfast.ErrLost)
				}
			})
		})
	}
}

// A context that goes on past its inner lock is that of no holder, though the outer lock is still there: a later
// holder of the inner lock would be overwritten.
func TestAReleasedLockFailsTheGuard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		acquire := func(ctx context.Context, key string, opts ...holdfast.CallOption) *holdfast.Lock {
			t.Helper()
			lock, err := locker.Acquire(ctx, key, opts...)
			if err != nil {
				t.Fatal(err)
			}
			return lock
		}
		release := func(lock *holdfast.Lock) {
			t.Helper()
			if err := lock.Release(background); err != nil {
				t.Fatal(err)
			}
		}
		fake, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		job := acquire(background, "job")
		inner := acquire(job.Context(background), "order:1")
		stays := context.WithoutCancel(inner.Context(job.Context(background)))
		if err := f.WithTx(stays, db, nil, write); err != nil {
			t.Fatalf("while both are held: %v", err)
		}
		err = f.WithTx(stays, db, nil, func(context.Context, *sql.Tx) error { release(inner); return nil })
		if !errors.Is(err, holdfast.ErrLost) || fake.count("commit") != 1 {
			t.Errorf("released before COMMIT: got %v and %s, want %v", err, fake.ops(), holdfast.ErrLost)
		}
		raised := fake.count("raise")
		for name, use := range map[string]func(_ context.Context, tx *sql.Tx) error{
			"WithTx":  func(context.Context, *sql.Tx) error { return f.WithTx(stays, db, nil, write) },
			"Advance": func(context.Context, *sql.Tx) error { return f.Advance(stays, db) },
			"marks": func(context.Context, *sql.Tx) error {
				return f.Advance(sqlfence.Mark{Resource: "job", Token: job.Token()}.In(stays), db)
			},
			"Guard": func(_ context.Context, tx *sql.Tx) error { return f.Guard(stays, tx) },
		} {
			var tx *sql.Tx
			if name == "Guard" {
				tx = begin(t, db)
			}
			if err := use(background, tx); !errors.Is(err, holdfast.ErrLost) || !strings.Contains(err.Error(), `"order:1"`) {
				t.Errorf("%s: got %v, want a loss of order:1", name, err)
			}
			if tx != nil {
				_ = tx.Rollback()
			}
		}
		if fake.count("raise") != raised || len(fake.sem) != 0 {
			t.Errorf("got %s, want the database not asked", fake.ops())
		}
		if err := f.WithTx(job.Context(background), db, nil, write); err != nil {
			t.Errorf("the outer context, which never carried the inner lock: %v", err)
		}
		next := acquire(job.Context(background), "order:2")
		if err := f.WithTx(next.Context(job.Context(background)), db, nil, write); err != nil {
			t.Errorf("the next inner lock: %v", err)
		}
		release(next)

		// A nested handle is another handle to the same lock, and a member shares it: the token is the same.
		nested := acquire(job.Context(background), "job", holdfast.WithReentrancy())
		stays = context.WithoutCancel(nested.Context(job.Context(background)))
		release(nested)
		if err := f.WithTx(stays, db, nil, write); err != nil {
			t.Errorf("after the release of a nested handle: %v", err)
		}
		first := acquire(background, "shared", holdfast.WithReentryID("x"))
		second := acquire(first.Context(background), "shared", holdfast.WithReentryID("x"))
		stays = context.WithoutCancel(second.Context(first.Context(background)))
		release(second)
		if err := f.WithTx(stays, db, nil, write); err != nil {
			t.Errorf("after the release of a member: %v", err)
		}
		release(first)
		if err := f.WithTx(stays, db, nil, write); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("after the release of both members: got %v, want %v", err, holdfast.ErrLost)
		}
		nested = acquire(job.Context(background), "job", holdfast.WithReentrancy())
		release(job)
		if err := f.WithTx(nested.Context(job.Context(background)), db, nil, write); err != nil {
			t.Errorf("with the nested handle alone: %v", err)
		}
		release(nested)
		if err := f.WithTx(context.WithoutCancel(nested.Context(job.Context(background))), db, nil, write); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("after the last handle: got %v, want %v", err, holdfast.ErrLost)
		}
	})
}
