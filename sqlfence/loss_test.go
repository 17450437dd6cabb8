package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// A lock that is lost while fn runs keeps it from committing, and from being repeated.
func TestNothingIsCommittedWithALockThatWasLost(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "deadlock": stateError("40P01")} {
		for _, pgx := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					locker, err := core.New(servertest.NewBubble(t).Client())
					if err != nil {
						t.Fatal(err)
					}
					defer locker.Shutdown(background)
					lock, err := locker.Acquire(background, "order:42", core.WithTTL(time.Second), core.WithoutRenewal())
					if err != nil {
						t.Fatal(err)
					}
					fake, db := newDB(t)
					f := newFence(t, sqlfence.Postgres)
					// This context does not end with the lock.
					ctx := context.WithoutCancel(lock.Context())
					if pgx {
						err = sqlfence.WithPgx(ctx, f, fake.beginPgx, func(fakePgx) error { time.Sleep(2 * time.Second); return result })
					} else {
						err = f.WithTx(ctx, db, nil, func(*sql.Tx) error { time.Sleep(2 * time.Second); return result })
					}
					if !errors.Is(err, core.ErrLost) {
						t.Errorf("got %v, want %v", err, core.ErrLost)
					}
					if got, want := fake.ops(), "begin raise rollback"; got != want {
						t.Errorf("got %s, want %s", got, want)
					}
					if err := lock.Release(background); !errors.Is(err, core.ErrLost) {
						t.Errorf("Release: got %v, want %v", err, core.ErrLost)
					}
				})
			})
		}
	}
}

func (f *fakeDB) beginPgx(ctx context.Context) (fakePgx, error) {
	c := &fakeConn{db: f}
	_, err := c.BeginTx(ctx, driver.TxOptions{})
	return fakePgx{c}, err
}
