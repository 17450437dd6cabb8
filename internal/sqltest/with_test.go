package sqltest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// withSurfaces are further ways of sqlfence's own.
func withSurfaces(t *testing.T, c *cell) {
	c.testSurface(t, "BeginTx", func(ctx context.Context, id int64, status string) error {
		tx, err := c.fence.BeginTx(ctx, c.db, c.opts)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, c.q(markPaid), status, id); err != nil {
			return err
		}
		return tx.Commit()
	})
	c.testSurface(t, "parallel", func(ctx context.Context, id int64, status string) error {
		return c.fence.WithTx(beside(ctx, c.fence), c.db, c.opts, func(_ context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
}

// beside makes the marks of ctx parallel.
func beside(ctx context.Context, f *sqlfence.Fence) context.Context {
	marks, _ := f.Marks(ctx)
	for i := range marks {
		marks[i].Parallel = true
	}
	return under(ctx, marks...)
}

// withPostgresSurfaces are those that are tested with PostgreSQL alone.
func withPostgresSurfaces(t *testing.T, c *cell, pool *pgxpool.Pool) {
	c.testSurface(t, "pgx parallel", func(ctx context.Context, id int64, status string) error {
		return pgxfence.WithTx(beside(ctx, c.fence), c.fence, pool, pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, c.q(markPaid), status, id)
			return err
		})
	})
}
