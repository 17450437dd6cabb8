package sqlfence

import "context"

// PgxTx is a transaction of pgx v5, used without database/sql. Nothing of pgx is imported: R is inferred to be pgx.Row, and
// any type with these methods will do.
type PgxTx[R interface{ Scan(dest ...any) error }] interface {
	QueryRow(ctx context.Context, sql string, args ...any) R
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// GuardPgx is [Fence.Guard] for a transaction of pgx; a pool or a connection is none. The fence must be for [Postgres]. A
// transaction begun on another transaction is a savepoint: guard the outer one.
func GuardPgx[R interface{ Scan(dest ...any) error }](ctx context.Context, f *Fence, tx PgxTx[R], marks ...Mark) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	err := f.isPostgres()
	if err == nil {
		err = f.guard(ctx, func(m Mark) (current int64, err error) {
			err = tx.QueryRow(ctx, f.sql.raise, m.Resource, m.Token).Scan(&current)
			return current, err
		}, marks)
	}
	return rolledBack(err, func() error { return rollbackPgx(ctx, tx.Rollback) })
}

// WithPgx is [Fence.WithTx] for pgx. begin starts the transaction:
//
//	sqlfence.WithPgx(ctx, fence, pool.Begin, func(tx pgx.Tx) error { ... })
//
// begin must not be the Begin of another transaction: that makes a savepoint, whose Commit commits nothing, and WithPgx
// refuses it. For options, begin is a function that calls pool.BeginTx. With a fn that returns nil at once WithPgx is
// [Fence.Advance].
func WithPgx[T PgxTx[R], R interface{ Scan(dest ...any) error }](ctx context.Context, f *Fence, begin func(context.Context) (T, error), fn func(tx T) error) error {
	if begin == nil || fn == nil {
		return invalid("nil function")
	}
	if err := f.isPostgres(); err != nil {
		return err
	}
	all, err := f.prepare(ctx, nil)
	if err != nil {
		return err
	}
	return f.repeat(ctx, f.retryable, func() error {
		if err := live(ctx); err != nil {
			return err
		}
		tx, err := begin(ctx)
		if err != nil {
			return because(ctx, failed("begin", err))
		}
		defer func() { _ = rollbackPgx(ctx, tx.Rollback) }() // nothing after a commit
		if err := suitable(tx); err != nil {
			return err
		}
		if err := GuardPgx[R](ctx, f, tx, all...); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		if err := live(ctx); err != nil {
			return err
		}
		return f.committed(tx.Commit(ctx))
	})
}

func (f *Fence) isPostgres() error {
	if f == nil || f.dialect != Postgres {
		return invalid("pgx needs a Fence for Postgres")
	}
	return nil
}

// rollbackPgx runs also when ctx has ended: pgx would close the connection instead, for nothing.
func rollbackPgx(ctx context.Context, rollback func(context.Context) error) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	return rollback(ctx)
}
