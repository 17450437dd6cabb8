package sqlfence

import "context"

// PgxTx is a transaction of pgx v5, used without database/sql. This package does not import pgx: R is inferred to be
// pgx.Row, and any type with these methods works.
type PgxTx[R interface{ Scan(dest ...any) error }] interface {
	QueryRow(ctx context.Context, sql string, args ...any) R
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

func pgxConn[R interface{ Scan(dest ...any) error }](ctx context.Context, tx PgxTx[R]) conn {
	return conn{
		tx: tx,
		number: func(query string, args ...any) (n int64, err error) {
			err = tx.QueryRow(ctx, query, args...).Scan(&n)
			return n, err
		},
		commit:   func() error { return tx.Commit(ctx) },
		rollback: func() error { return rollbackPgx(ctx, tx.Rollback) },
	}
}

// GuardPgx is [Fence.Guard] for a transaction of pgx. A pool or a connection is not a transaction. The fence must be for
// [Postgres]. A transaction that was begun on another one is a savepoint, which GuardPgx refuses: guard the outer one.
//
// Commit the transaction with its own Commit. Unlike [WithPgx], that neither checks the locks once more nor returns an
// [ErrCommitUnknown].
func GuardPgx[R interface{ Scan(dest ...any) error }](ctx context.Context, f *Fence, tx PgxTx[R], marks ...Mark) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	c := pgxConn(ctx, tx)
	err := f.isPostgres()
	if err == nil {
		err = suitable(tx)
	}
	if err == nil {
		err = f.guard(ctx, c, marks)
	}
	return rolledBack(err, c.rollback)
}

// WithPgx is [Fence.WithTx] for pgx. begin starts the transaction:
//
//	sqlfence.WithPgx(ctx, fence, pool.Begin, func(tx pgx.Tx) error { ... })
//
// For transaction options, let begin call pool.BeginTx. begin must not be the Begin of another transaction: that makes a
// savepoint, whose Commit commits nothing, and WithPgx refuses it.
//
// In place of [Fence.Advance], call WithPgx with a function that only returns nil. Unlike Advance, WithPgx does not repeat
// a transaction after an [ErrCommitUnknown].
func WithPgx[T PgxTx[R], R interface{ Scan(dest ...any) error }](ctx context.Context, f *Fence, begin func(context.Context) (T, error), fn func(tx T) error, marks ...Mark) error {
	if begin == nil || fn == nil {
		return invalid("nil function")
	}
	if err := f.isPostgres(); err != nil {
		return err
	}
	all, err := f.prepare(ctx, marks)
	if err != nil {
		return err
	}
	return with(ctx, f, func() (T, conn, error) {
		tx, err := begin(ctx)
		if err != nil {
			return tx, conn{}, err
		}
		return tx, pgxConn[R](ctx, tx), nil
	}, fn, all, f.retryable)
}

// ExecRowPgx is [Fence.ExecRow] for a transaction of pgx. The fence must be for [Postgres].
func ExecRowPgx[T interface {
	PgxTx[R]
	Exec(ctx context.Context, sql string, args ...any) (C, error)
}, R interface{ Scan(dest ...any) error }, C any](ctx context.Context, f *Fence, tx T, row Row, query string, args ...any) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	c := pgxConn[R](ctx, tx)
	c.exec = func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
	err := f.isPostgres()
	if err == nil {
		err = suitable(tx)
	}
	if err == nil {
		err = f.execRow(ctx, c, row, query, args)
	}
	return rolledBack(err, c.rollback)
}

func (f *Fence) isPostgres() error {
	if f == nil || f.dialect != Postgres {
		return invalid("pgx needs a Fence for Postgres")
	}
	return nil
}

// rollbackPgx rolls back even if ctx has ended: under an ended context pgx would needlessly close the connection.
func rollbackPgx(ctx context.Context, rollback func(context.Context) error) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	return rollback(ctx)
}
