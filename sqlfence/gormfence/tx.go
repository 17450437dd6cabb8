package gormfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/gorm"
)

// pool is gorm's pool, with guarded transactions.
type pool struct {
	gorm.ConnPool
	guard *guard
}

// BeginTx makes the pool a [gorm.ConnPoolBeginner].
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	return p.guard.begin(ctx, p.ConnPool, opts, true)
}

// GetDBConn is for [gorm.DB.DB].
func (p *pool) GetDBConn() (*sql.DB, error) { return database(p.ConnPool) }

// These are for dbresolver, which sets the limits of its pools if they have the methods.

func (p *pool) SetConnMaxIdleTime(d time.Duration) {
	p.limit(func(db *sql.DB) { db.SetConnMaxIdleTime(d) })
}
func (p *pool) SetConnMaxLifetime(d time.Duration) {
	p.limit(func(db *sql.DB) { db.SetConnMaxLifetime(d) })
}
func (p *pool) SetMaxIdleConns(n int) { p.limit(func(db *sql.DB) { db.SetMaxIdleConns(n) }) }
func (p *pool) SetMaxOpenConns(n int) { p.limit(func(db *sql.DB) { db.SetMaxOpenConns(n) }) }

func (p *pool) limit(set func(*sql.DB)) {
	if db, err := p.GetDBConn(); err == nil {
		set(db)
	}
}

func database(conn gorm.ConnPool) (*sql.DB, error) {
	switch c := conn.(type) {
	case *sql.DB:
		return c, nil
	case gorm.GetDBConnector:
		return c.GetDBConn()
	}
	return nil, gorm.ErrInvalidDB
}

// tx is a transaction that the plugin began.
type tx struct {
	gorm.Tx
	guard *guard
	conn  gorm.ConnPool   // what it was begun on
	ctx   context.Context // what it was begun with: Commit checks its locks, which are those of the guard
	locks []sqlfence.Mark // what it is guarded by
	kept  bool            // whether it has the savepoint
}

// keep and kept detect that MySQL has ended a transaction, as [sqlfence.Fence.WithTx] does. MySQL ends one at a deadlock and
// at a statement that commits implicitly. If the caller ignores that, its later statements are committed one by one, and
// COMMIT succeeds all the same. But the savepoint is gone then.
const (
	keep = "SAVEPOINT gormfence_guard"
	kept = "RELEASE SAVEPOINT gormfence_guard"
)

// begin begins a transaction on conn, and guards it if ctx carries a lock. With keeps, COMMIT detects on MySQL that the
// transaction ended before. On an error begin returns a nil *tx, not a nil interface: gorm's Rollback then does nothing.
func (g *guard) begin(ctx context.Context, conn gorm.ConnPool, opts *sql.TxOptions, keeps bool) (gorm.ConnPool, error) {
	switch c := conn.(type) {
	case *pool:
		return g.begin(ctx, c.ConnPool, opts, keeps)
	case *gorm.PreparedStmtDB:
		inner, err := g.begin(ctx, c.ConnPool, opts, keeps)
		if err != nil {
			return inner, err
		}
		return &gorm.PreparedStmtTX{Tx: inner.(gorm.Tx), PreparedStmtDB: c}, nil
	}
	t := &tx{guard: g, conn: conn, ctx: ctx}
	var err error
	if opts == nil || !opts.ReadOnly {
		t.locks, _, err = g.locks(ctx)
	}
	if err == nil {
		t.Tx, err = g.open(ctx, conn, opts, len(t.locks) > 0)
	}
	if err == nil && keeps && g.dialect == "mysql" && len(t.locks) > 0 {
		t.kept = true
		if _, err = t.ExecContext(ctx, keep); err != nil {
			err = errors.Join(fmt.Errorf("gormfence: savepoint: %w", err), t.Rollback())
		}
	}
	if err != nil {
		return (*tx)(nil), err
	}
	return t, nil
}

// open begins a transaction on a pool that is neither the plugin's nor gorm's own.
func (g *guard) open(ctx context.Context, conn gorm.ConnPool, opts *sql.TxOptions, guarded bool) (gorm.Tx, error) {
	switch c := conn.(type) {
	case sqlfence.DB:
		begin := c.BeginTx
		if guarded {
			begin = func(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) { return g.fence.BeginTx(ctx, c, opts) }
		}
		t, err := begin(ctx, opts)
		if err != nil {
			return nil, err
		}
		return t, nil
	case gorm.ConnPoolBeginner: // another plugin's
		inner, err := c.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		t, ok := inner.(gorm.Tx)
		if !ok {
			if c, ok := inner.(gorm.TxCommitter); ok {
				_ = c.Rollback()
			}
			return nil, fmt.Errorf("gormfence: %T: %w", inner, gorm.ErrInvalidTransaction)
		}
		if guarded {
			err = g.raise(ctx, t)
		}
		return t, err
	}
	return nil, gorm.ErrInvalidTransaction
}

// Commit commits as [sqlfence.Fence.WithTx] does.
func (t *tx) Commit() error {
	if len(t.locks) == 0 {
		return t.Tx.Commit()
	}
	if t.kept {
		if _, err := t.ExecContext(t.ctx, kept); err != nil {
			return t.gone(err)
		}
	}
	return t.guard.fence.Commit(t.ctx, t.Tx)
}

// gone returns the error for a savepoint that could not be released, and rolls back.
func (t *tx) gone(err error) error {
	over := holdfast.Err(t.ctx)
	if over == nil {
		over = t.ctx.Err()
	}
	switch {
	case number(err) == 1305: // the savepoint does not exist, whatever has ended since
		err = endedBefore(err)
		if over != nil {
			err = fmt.Errorf("%w; %w", err, over)
		}
	case over != nil:
		err = fmt.Errorf("gormfence: before COMMIT: %w; %w", err, over)
	case errors.Is(err, sql.ErrTxDone):
	case errors.Is(err, driver.ErrBadConn):
		err = fmt.Errorf("gormfence: before COMMIT: %w", err)
	default:
		err = endedBefore(err)
	}
	_ = t.Rollback()
	return err
}

func endedBefore(err error) error {
	return fmt.Errorf("%w: the transaction ended before its COMMIT, by an ignored deadlock or a statement that commits implicitly; what ran after that was not guarded: %w",
		sqlfence.ErrCommitUnknown, err)
}

// number returns the MySQL number of an error, or 0. It is a field in go-sql-driver, which this package does not import.
func number(err error) uint64 {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if f, ok := v.Type().FieldByName("Number"); ok && len(f.Index) == 1 && v.Field(f.Index[0]).CanUint() {
			return v.Field(f.Index[0]).Uint()
		}
	}
	return 0
}

// GetDBConn is for [gorm.DB.DB].
func (t *tx) GetDBConn() (*sql.DB, error) { return database(t.conn) }

// transaction returns the transaction that conn is, below gorm's prepared statements, or nil if conn is not one.
func transaction(conn gorm.ConnPool) sqlfence.Tx {
	for {
		prepared, ok := conn.(*gorm.PreparedStmtTX)
		if !ok {
			break
		}
		conn = prepared.Tx
	}
	t, _ := conn.(sqlfence.Tx)
	return t
}

// failedRow returns a row whose Scan returns err: database/sql makes one if it cannot connect.
func failedRow(err error) *sql.Row {
	db := sql.OpenDB(refusal{err})
	defer db.Close()
	return db.QueryRowContext(context.Background(), "")
}

type refusal struct{ err error }

func (r refusal) Connect(context.Context) (driver.Conn, error) { return nil, r.err }
func (r refusal) Driver() driver.Driver                        { return nil }
