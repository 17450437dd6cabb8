package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fakeDB is a PostgreSQL with one guard row and one transaction at a time; internal/sqltest has a real one.
type fakeDB struct {
	token int64
	next  error // what the next guard answers
	lost  error // what the next COMMIT answers
	log   []string
}

type fakeTx struct {
	pgx.Tx
	db    *fakeDB
	token int64 // at BEGIN
	ended bool
}

func (db *fakeDB) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	db.log = append(db.log, "begin")
	return &fakeTx{db: db, token: db.token}, nil
}

type fakeRow struct {
	token int64
	err   error
}

func (r fakeRow) Scan(dest ...any) error {
	*dest[0].(*int64) = r.token
	return r.err
}

func (tx *fakeTx) QueryRow(_ context.Context, query string, args ...any) pgx.Row {
	db := tx.db
	if err := db.next; err != nil {
		db.next = nil
		return fakeRow{err: err}
	}
	if strings.Contains(query, "SHARE") {
		db.log = append(db.log, "share")
		if db.token == 0 {
			return fakeRow{err: pgx.ErrNoRows}
		}
		return fakeRow{token: db.token}
	}
	db.log = append(db.log, "raise")
	db.token = max(db.token, args[1].(int64))
	return fakeRow{token: db.token}
}

func (tx *fakeTx) end(how string, ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if tx.ended {
		return pgx.ErrTxClosed
	}
	tx.ended = true
	tx.db.log = append(tx.db.log, how)
	return nil
}

func (tx *fakeTx) Commit(ctx context.Context) error {
	if err := tx.end("commit", ctx); err != nil {
		return err
	}
	err := tx.db.lost
	tx.db.lost = nil
	return err
}

func (tx *fakeTx) Rollback(ctx context.Context) error {
	err := tx.end("rollback", ctx)
	if err == nil {
		tx.db.token = tx.token
	}
	return err
}

func (db *fakeDB) did(t *testing.T, want string) {
	t.Helper()
	if got := strings.Join(db.log, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	db.log = nil
}

func newFence(t *testing.T, d sqlfence.Dialect) *sqlfence.Fence {
	t.Helper()
	f, err := sqlfence.New(d)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func token(ctx context.Context, n int64) context.Context {
	return sqlfence.Mark{Resource: "r", Token: n}.In(ctx)
}

func nothing(context.Context, pgx.Tx) error { return nil }

func TestWithTx(t *testing.T) {
	db, f := &fakeDB{}, newFence(t, sqlfence.Postgres)
	run := func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
		return pgxfence.WithTx(ctx, f, db, pgx.TxOptions{}, fn)
	}
	db.next = &pgconn.PgError{Code: "40001"}
	if err := run(token(t.Context(), 7), nothing); err != nil {
		t.Error(err)
	}
	db.did(t, "begin rollback begin raise commit")
	if err := run(token(t.Context(), 6), nothing); !errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
	}
	db.did(t, "begin raise rollback")
	ctx, cancel := context.WithCancel(token(t.Context(), 8))
	if err := run(ctx, func(context.Context, pgx.Tx) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	db.did(t, "begin raise rollback")
	db.lost = io.ErrUnexpectedEOF
	if err := run(token(t.Context(), 8), nothing); !errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("got %v, want %v", err, sqlfence.ErrCommitUnknown)
	}
	db.did(t, "begin raise commit")
	err := run(token(t.Context(), 8), func(ctx context.Context, _ pgx.Tx) error { return run(ctx, nothing) })
	if !errors.Is(err, holdfast.ErrSelfDeadlock) {
		t.Errorf("one inside another: got %v, want %v", err, holdfast.ErrSelfDeadlock)
	}
	db.did(t, "begin raise rollback")
	// There is no row to share yet.
	db.token = 0
	if err := run(sqlfence.Mark{Resource: "r", Token: 9, Parallel: true}.In(t.Context()), nothing); err != nil {
		t.Error(err)
	}
	db.did(t, "begin share rollback begin share rollback begin raise commit begin share commit")
}

func TestGuardAndCommit(t *testing.T) {
	db, f := &fakeDB{}, newFence(t, sqlfence.Postgres)
	for _, tt := range []struct {
		token int64
		lost  error
		want  error
		did   string
	}{
		{7, nil, nil, "begin raise commit"},
		{6, nil, sqlfence.ErrStale, "begin raise rollback"},
		{7, io.ErrUnexpectedEOF, sqlfence.ErrCommitUnknown, "begin raise commit"},
	} {
		ctx := token(t.Context(), tt.token)
		tx, _ := db.BeginTx(ctx, pgx.TxOptions{})
		db.lost = tt.lost
		err := pgxfence.Guard(ctx, f, tx)
		if err == nil {
			err = pgxfence.Commit(ctx, f, tx)
		}
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("token %d: got %v, want %v", tt.token, err, tt.want)
		}
		db.did(t, tt.did)
	}
	ctx, cancel := context.WithCancel(token(t.Context(), 7))
	tx, _ := db.BeginTx(ctx, pgx.TxOptions{})
	err := pgxfence.Guard(ctx, f, tx)
	cancel()
	if err = errors.Join(err, pgxfence.Commit(ctx, f, tx)); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: got %v, want %v", err, context.Canceled)
	}
	db.did(t, "begin raise rollback")
}

func TestBadArguments(t *testing.T) {
	db, f, ctx := &fakeDB{}, newFence(t, sqlfence.Postgres), token(t.Context(), 7)
	lite := newFence(t, sqlfence.SQLite)
	tx, _ := db.BeginTx(ctx, pgx.TxOptions{})
	var none context.Context
	for name, err := range map[string]error{
		"Guard without Tx":      pgxfence.Guard(ctx, f, nil),
		"Guard without context": pgxfence.Guard(none, f, tx),
		"Guard without a Fence": pgxfence.Guard(ctx, nil, tx),
		"Guard on SQLite":       pgxfence.Guard(ctx, lite, tx),
		"Commit without Tx":     pgxfence.Commit(ctx, f, nil),
		"Commit on SQLite":      pgxfence.Commit(ctx, lite, tx),
		"Commit nowhere":        pgxfence.Commit(none, f, tx),
		"WithTx on SQLite":      pgxfence.WithTx(ctx, lite, db, pgx.TxOptions{}, nothing),
		"WithTx without DB":     pgxfence.WithTx(ctx, f, nil, pgx.TxOptions{}, nothing),
		"WithTx without fn":     pgxfence.WithTx(ctx, f, db, pgx.TxOptions{}, nil),
		"WithTx read-only":      pgxfence.WithTx(ctx, f, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, nothing),
	} {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: got %v, want %v", name, err, holdfast.ErrInvalid)
		}
	}
}

func Example() {
	pool := &fakeDB{} // a *pgxpool.Pool
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := sqlfence.Mark{Resource: "order:42", Token: 7}.In(context.Background()) // or the context of a lock

	err := pgxfence.WithTx(ctx, fence, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return nil // tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", 42)
	})
	fmt.Println(err)
	// Output: <nil>
}

// Guard a transaction that other code begins.
func ExampleGuard() {
	pool := &fakeDB{}
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := sqlfence.Mark{Resource: "order:42", Token: 7}.In(context.Background())

	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err == nil {
		err = pgxfence.Guard(ctx, fence, tx) // the first statement; after an error tx has been rolled back
	}
	if err == nil {
		err = pgxfence.Commit(ctx, fence, tx)
	}
	fmt.Println(err)
	// Output: <nil>
}
