package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// withSurfaces are the transactions of libraries as the documentation of With has them.
func withSurfaces(t *testing.T, c *cell, driver string, dialector gorm.Dialector) {
	dbx := sqlx.NewDb(c.db, driver)
	c.testSurface(t, "With sqlx", func(ctx context.Context, id int64, status string) error {
		return sqlfence.With(ctx, c.fence, func(ctx context.Context) (*sqlx.Tx, sqlfence.Tx, error) {
			tx, err := dbx.BeginTxx(ctx, nil)
			return tx, tx, err
		}, func(tx *sqlx.Tx) error {
			_, err := tx.NamedExecContext(ctx, "UPDATE items SET status = :status WHERE id = :id", map[string]any{"id": id, "status": status})
			return err
		})
	})
	client := entsql.OpenDB(driver, c.db)
	c.testSurface(t, "With ent", func(ctx context.Context, id int64, status string) error {
		return sqlfence.With(ctx, c.fence, func(ctx context.Context) (*Tx, sqlfence.Tx, error) {
			begun, err := client.Tx(ctx)
			if err != nil {
				return nil, nil, err
			}
			tx := &Tx{config: config{driver: &txDriver{Driver: client, tx: begun}}, ctx: ctx}
			return tx, tx, nil
		}, func(tx *Tx) error {
			_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	for _, prepare := range []bool{false, true} {
		db, err := gorm.Open(dialector, &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		begin := func(ctx context.Context) (*gorm.DB, sqlfence.Tx, error) {
			tx := db.WithContext(ctx).Begin()
			if tx.Error != nil {
				return nil, nil, tx.Error
			}
			return tx, tx.Statement.ConnPool.(sqlfence.Tx), nil
		}
		c.testSurface(t, "With gorm", func(ctx context.Context, id int64, status string) error {
			return sqlfence.With(ctx, c.fence, begin, func(tx *gorm.DB) error { return tx.Save(&item{id, status}).Error })
		})
		t.Run("With gorm repeats", func(t *testing.T) {
			runs := 0
			err := sqlfence.With(sqlfence.WithToken(within(t), "with gorm", 7), c.fence, begin, func(tx *gorm.DB) error {
				if runs++; runs < 3 {
					return transientOf(c.dialect)
				}
				return tx.Exec("UPDATE items SET status = 'x' WHERE id = -1").Error
			})
			if err != nil || runs != 3 {
				t.Errorf("got %v after %d runs", err, runs)
			}
			if !prepare {
				return
			}
			// MySQL prepares no SAVEPOINT. MariaDB does, so that nothing fails on it.
			prepared := fmt.Sprint(db.ConnPool.(*gorm.PreparedStmtDB).Stmts.Keys())
			if !strings.Contains(prepared, "sqlfence") || strings.Contains(prepared, "SAVEPOINT") {
				t.Errorf("want the guard prepared, and no savepoint: %s", prepared)
			}
		})
	}
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
		return c.fence.WithTx(sqlfence.WithParallel(ctx), c.db, c.opts, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
}

// transient is an error as a driver has it.
type transient string

func (e transient) Error() string    { return "transient" }
func (e transient) SQLState() string { return string(e) }

type mysqlTransient struct{ Number uint16 }

func (mysqlTransient) Error() string { return "transient" }

type sqliteTransient struct{ Code int }

func (sqliteTransient) Error() string { return "transient" }

func transientOf(d sqlfence.Dialect) error {
	switch d {
	case sqlfence.Postgres:
		return transient("40P01")
	case sqlfence.MySQL:
		return mysqlTransient{1213}
	}
	return sqliteTransient{5}
}

// withPostgresSurfaces are those of libraries that are tested with PostgreSQL alone.
func withPostgresSurfaces(t *testing.T, c *cell, pool *pgxpool.Pool) {
	b := bun.NewDB(c.db, pgdialect.New())
	c.testSurface(t, "With bun", func(ctx context.Context, id int64, status string) error {
		return sqlfence.With(ctx, c.fence, func(ctx context.Context) (bun.Tx, sqlfence.Tx, error) {
			tx, err := b.BeginTx(ctx, nil)
			return tx, tx.Tx, err
		}, func(tx bun.Tx) error {
			_, err := tx.NewUpdate().Table("items").Set("status = ?", status).Where("id = ?", id).Exec(ctx)
			return err
		})
	})
	t.Run("With bun.Tx", func(t *testing.T) {
		err := sqlfence.With(sqlfence.WithToken(within(t), "bun", 7), c.fence, func(ctx context.Context) (bun.Tx, sqlfence.Tx, error) {
			tx, err := b.BeginTx(ctx, nil)
			return tx, tx, err
		}, func(bun.Tx) error { t.Error("fn runs"); return nil })
		if err == nil || !strings.Contains(err.Error(), "tx.Tx") {
			t.Errorf("got %v, want a refusal that says what to do", err)
		}
	})
	c.testSurface(t, "pgx parallel", func(ctx context.Context, id int64, status string) error {
		return sqlfence.WithPgx(sqlfence.WithParallel(ctx), c.fence, pool.Begin, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	t.Run("pgx row", func(t *testing.T) {
		c.exec(t, "CREATE TABLE fenced (id bigint PRIMARY KEY, status text NOT NULL, fence bigint NOT NULL)")
		c.exec(t, "INSERT INTO fenced VALUES (1, 'new', 0)")
		write := func(ctx context.Context, token int64, query string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				row := sqlfence.Row{Table: "fenced", Key: "id", ID: 1, Fence: "fence", Resource: "order:1"}
				return sqlfence.ExecRowPgx(sqlfence.WithToken(ctx, "order:1", token), c.fence, tx, row, query, token)
			})
		}
		const update = "UPDATE fenced SET status = 'paid', fence = $1 WHERE id = 1 AND fence <= $1"
		for _, token := range []int64{7, 7, 8} {
			if err := write(within(t), token, update); err != nil {
				t.Errorf("token %d: %v", token, err)
			}
		}
		wantStale(t, write(within(t), 7, update), sqlfence.StaleError{Resource: "fenced", Token: 7, Current: 8})
		if err := write(within(t), 9, "DELETE FROM fenced WHERE fence <= $1"); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("a hard delete: got %v", err)
		}
		if got := c.number(t, "SELECT fence FROM fenced WHERE id = 1"); got != 8 {
			t.Errorf("got %d, want 8", got)
		}
	})
}
