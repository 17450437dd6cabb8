// Package refused must not compile: each call passes something that is no transaction.
package refused

import (
	"context"
	"database/sql"

	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
)

func refused(ctx context.Context, f *sqlfence.Fence, db *sql.DB, conn *sql.Conn, dbx *sqlx.DB, dbb *bun.DB, pool *pgxpool.Pool, native *pgx.Conn, tx pgx.Tx) {
	_ = f.Guard(ctx, db)                                      // want Commit
	_ = f.Guard(ctx, conn)                                    // want Commit
	_ = f.Guard(ctx, dbx)                                     // want Commit
	_ = f.Guard(ctx, dbb)                                     // want Commit
	_ = pgxfence.Guard(ctx, f, pool)                          // want Commit
	_ = pgxfence.Guard(ctx, f, native)                        // want Commit
	_ = pgxfence.WithTx(ctx, f, tx, pgx.TxOptions{}, nothing) // want
}

func nothing(context.Context, pgx.Tx) error { return nil }
