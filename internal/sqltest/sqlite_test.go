package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/sqltest/sqlitetest"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/jmoiron/sqlx"
)

func TestFailedCommits(t *testing.T) {
	t.Parallel()
	sqlitetest.FailedCommits(t, sqlitetest.Driver{
		Name: "sqlite", Settings: "_pragma=busy_timeout(10)&_pragma=foreign_keys(1)&_txlock=immediate", Journal: "_pragma=journal_mode=",
	}, sqlitetest.Ways{
		"sqlx": func(ctx context.Context, db *sql.DB, f *sqlfence.Fence, query string) error {
			return commitSqlx(ctx, db, f, func(tx *sqlx.Tx) error { _, err := tx.Exec(query); return err })
		},
	})
}

func commitSqlx(ctx context.Context, db *sql.DB, f *sqlfence.Fence, fn func(tx *sqlx.Tx) error) error {
	tx, err := sqlx.NewDb(db, "sqlite").BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f.Guard(ctx, tx); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return f.Commit(ctx, tx)
}

// The documentation says that rows must be closed. Where they are not, COMMIT is a statement of its own.
func TestOpenRows(t *testing.T) {
	t.Parallel()
	c := sqliteCells(t)[1]
	c.open(t)
	c.exec(t, "CREATE TABLE open (n bigint)")
	fence, err := sqlfence.New(sqlfence.SQLite, sqlfence.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	ctx := sqlfence.Mark{Resource: "open", Token: 7}.In(within(t))
	leave := func(tx interface {
		Query(string, ...any) (*sql.Rows, error)
	}) error {
		rows, err := tx.Query("INSERT INTO open VALUES (1), (2) RETURNING n")
		if err == nil && !rows.Next() {
			err = rows.Err()
		}
		return err
	}
	for what, err := range map[string]error{
		"WithTx": fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error { return leave(tx) }),
		"sqlx":   commitSqlx(ctx, c.db, fence, func(tx *sqlx.Tx) error { return leave(tx) }),
	} {
		if err == nil || !strings.Contains(err.Error(), "statements in progress") {
			t.Errorf("%s: got %v, want COMMIT refused", what, err)
		}
	}
	if n := c.number(t, "SELECT count(*) FROM open"); n != 0 {
		t.Errorf("%d rows are written", n)
	}
}

// What still uses a transaction when it is committed writes before COMMIT or not at all.
func TestStragglersOfATransaction(t *testing.T) {
	t.Parallel()
	c := sqliteCells(t)[1]
	c.open(t)
	c.exec(t, "CREATE TABLE log (guarded bigint)")
	var all sync.WaitGroup
	for i := range 100 {
		ctx := sqlfence.Mark{Resource: "r", Token: int64(i + 1)}.In(within(t))
		err := c.fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error {
			if _, err := tx.Exec("PRAGMA defer_foreign_keys = 1"); err != nil { // COMMIT resets it
				return err
			}
			started := make(chan bool)
			all.Go(func() {
				close(started)
				for !errors.Is(c.straggle(tx), sql.ErrTxDone) {
				}
			})
			<-started
			return c.straggle(tx)
		})
		all.Wait()
		if err != nil {
			t.Error(err)
		}
	}
	inside, outside := c.number(t, "SELECT count(*) FROM log WHERE guarded = 1"), c.number(t, "SELECT count(*) FROM log WHERE guarded = 0")
	if inside < 100 || outside > 0 {
		t.Errorf("%d writes in guarded transactions and %d behind their COMMIT", inside, outside)
	}
}

func (c *cell) straggle(tx *sql.Tx) error {
	_, err := tx.Exec("INSERT INTO log SELECT defer_foreign_keys FROM pragma_defer_foreign_keys")
	return err
}
