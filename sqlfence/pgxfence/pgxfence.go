// Package pgxfence guards transactions of pgx with package [sqlfence], without database/sql. The fence must be for
// [sqlfence.Postgres].
//
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return pgxfence.WithTx(ctx, fence, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", id)
//			return err
//		})
//	})
//
// Guarantees, limits and errors are those of sqlfence. For [sqlfence.Fence.Advance], call [WithTx] with a function that only
// returns nil; it does not repeat a transaction after a [sqlfence.ErrCommitUnknown]. For [sqlfence.Fence.Current] and
// [sqlfence.Fence.Prune], open a *sql.DB with stdlib.OpenDBFromPool.
package pgxfence

import (
	"context"
	"fmt"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/internal/native"
	"github.com/jackc/pgx/v5"
)

// DB begins transactions: a *pgxpool.Pool, *pgxpool.Conn or [*pgx.Conn]. A [pgx.Tx] is not a DB, because what it begins is a
// savepoint.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Guard is [sqlfence.Fence.Guard]. It refuses a transaction that was begun on another one, which is a savepoint: guard the
// outer one. End the transaction with [Commit].
func Guard(ctx context.Context, fence *sqlfence.Fence, tx pgx.Tx) error {
	if tx == nil {
		return invalid("nil transaction")
	}
	return native.Guard(ctx, fence, conn(ctx, tx))
}

// Commit is [sqlfence.Fence.Commit].
func Commit(ctx context.Context, fence *sqlfence.Fence, tx pgx.Tx) error {
	if tx == nil {
		return invalid("nil transaction")
	}
	return native.Commit(ctx, fence, conn(ctx, tx))
}

// WithTx is [sqlfence.Fence.WithTx].
func WithTx(ctx context.Context, fence *sqlfence.Fence, db DB, opts pgx.TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	switch {
	case db == nil:
		return invalid("nil database")
	case fn == nil:
		return invalid("nil function")
	case opts.AccessMode == pgx.ReadOnly:
		return invalid("a guard writes, the transaction is read-only")
	}
	begin := func() (native.Conn, error) {
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return native.Conn{}, err
		}
		return conn(ctx, tx), nil
	}
	return native.WithTx(ctx, fence, begin, func(ctx context.Context, tx any) error { return fn(ctx, tx.(pgx.Tx)) })
}

func conn(ctx context.Context, tx pgx.Tx) native.Conn {
	return native.Conn{
		Tx: tx,
		Number: func(query string, args ...any) (n int64, err error) {
			err = tx.QueryRow(ctx, query, args...).Scan(&n)
			return n, err
		},
		Commit:   func() error { return tx.Commit(ctx) },
		Rollback: func() error { return rollback(ctx, tx) },
	}
}

// rollback rolls back even if ctx has ended: under an ended context pgx would needlessly close the connection.
func rollback(ctx context.Context, tx pgx.Tx) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return tx.Rollback(ctx)
}

func invalid(why string) error { return fmt.Errorf("pgxfence: %s: %w", why, holdfast.ErrInvalid) }
