package sqlfence

import (
	"context"

	"github.com/holdfast-go/holdfast/sqlfence/internal/native"
)

type conn = native.Conn

func init() {
	native.Guard = func(ctx context.Context, fence any, c conn) error {
		f := fence.(*Fence)
		if err := f.isPostgres(); err != nil {
			return rolledBack(err, c.Rollback)
		}
		return f.guardTx(ctx, c)
	}
	native.Commit = func(ctx context.Context, fence any, c conn) error {
		f := fence.(*Fence)
		if err := f.isPostgres(); err != nil {
			return rolledBack(err, c.Rollback)
		}
		return f.commitTx(ctx, c)
	}
	native.WithTx = func(ctx context.Context, fence any, begin func() (conn, error), fn func(context.Context, any) error) error {
		f := fence.(*Fence)
		if err := f.isPostgres(); err != nil {
			return err
		}
		all, err := f.begins(ctx)
		if err != nil {
			return err
		}
		return f.with(ctx, begin, fn, all, f.retryable)
	}
}

func (f *Fence) isPostgres() error {
	if f == nil || f.dialect != Postgres {
		return invalid("pgx needs a Fence for Postgres")
	}
	return nil
}
