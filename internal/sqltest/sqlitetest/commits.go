// Package sqlitetest has tests for sqlfence with any driver for SQLite. Two of them cannot be in one program.
package sqlitetest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// Driver is a driver for SQLite.
type Driver struct {
	Name string
	// Settings is the query of its data source names: a busy_timeout of a few ms, foreign keys, BEGIN IMMEDIATE.
	Settings string
	Journal  string // what the settings for the journal begin with
	Leaves   bool   // whether its own Commit leaves a transaction open that it could not commit
}

// Ways run a query in a guarded transaction of their own on a pool, by their names.
type Ways map[string]func(ctx context.Context, db *sql.DB, f *sqlfence.Fence, query string) error

// own are the ways of sqlfence itself.
var own = Ways{
	"WithTx": func(ctx context.Context, db *sql.DB, f *sqlfence.Fence, query string) error {
		return f.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error { return exec(ctx, tx, query) })
	},
	"BeginTx": func(ctx context.Context, db *sql.DB, f *sqlfence.Fence, query string) error {
		tx, err := f.BeginTx(ctx, db, nil)
		if err == nil {
			err = exec(ctx, tx, query)
		}
		if err != nil {
			return err
		}
		return f.Commit(ctx, tx)
	},
	"Guard": func(ctx context.Context, db *sql.DB, f *sqlfence.Fence, query string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err == nil {
			err = f.Guard(ctx, tx)
		}
		if err == nil {
			err = exec(ctx, tx, query)
		}
		if err != nil {
			return err
		}
		return f.Commit(ctx, tx)
	},
}

func exec(ctx context.Context, db sqlfence.Tx, query string) error {
	_, err := db.ExecContext(ctx, query)
	return err
}

// file is a database with its tables, a pool of one connection to it, and another pool.
type file struct {
	pool, other *sql.DB
	fence       *sqlfence.Fence // repeats nothing
}

func (d Driver) open(t *testing.T, journal string) *file {
	t.Helper()
	dsn := "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "db")) + "?" + d.Settings + "&" + d.Journal + journal
	pool := func() *sql.DB {
		db, err := sql.Open(d.Name, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	fence, err := sqlfence.New(sqlfence.SQLite, sqlfence.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	f := &file{pool(), pool(), fence}
	f.pool.SetMaxOpenConns(1)
	for _, query := range []string{
		fence.DDL(), "CREATE TABLE items (id integer PRIMARY KEY, parent integer REFERENCES items DEFERRABLE INITIALLY DEFERRED)",
		"INSERT INTO items (id) VALUES (1), (2)",
	} {
		if _, err := f.pool.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// read keeps readers in the file until the rows are closed.
func (f *file) read(t *testing.T) *sql.Rows {
	t.Helper()
	rows, err := f.other.Query("SELECT id FROM items")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	return rows
}

func under(t *testing.T, token int64) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return sqlfence.Mark{Resource: "r", Token: token}.In(ctx)
}

// clean checks that a transaction has left nothing in the file nor in the connection of the pool: neither can its writes
// be committed any more, nor is the next holder kept out, and what the connection writes then is in the file.
func (f *file) clean(t *testing.T) {
	t.Helper()
	if _, err := f.pool.Exec("COMMIT"); err == nil {
		t.Error("the connection was in a transaction, and has committed it")
	}
	if token, err := f.fence.Current(t.Context(), f.other, "r"); token != 0 || err != nil {
		t.Errorf("the database has token %d, %v, want none", token, err)
	}
	if err := own["WithTx"](under(t, 8), f.other, f.fence, "INSERT INTO items (id) VALUES (8)"); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	if _, err := f.pool.Exec("INSERT INTO items (id) VALUES (9)"); err != nil {
		t.Error(err)
	}
	if err := own["WithTx"](under(t, 10), f.pool, f.fence, "INSERT INTO items (id) VALUES (10)"); err != nil {
		t.Error(err)
	}
	var n int
	if err := f.other.QueryRow("SELECT sum(id) FROM items").Scan(&n); n != 1+2+8+9+10 || err != nil {
		t.Errorf("the ids add up to %d, %v, want %d", n, err, 1+2+8+9+10)
	}
}

// FailedCommits has COMMIT fail in each way, where SQLite leaves the transaction open.
func FailedCommits(t *testing.T, d Driver, more Ways) {
	for _, ways := range []Ways{own, more} {
		for name, run := range ways {
			t.Run(name+",busy", func(t *testing.T) {
				f := d.open(t, "delete")
				rows := f.read(t)
				f.failed(t, run(under(t, 7), f.pool, f.fence, "INSERT INTO items (id) VALUES (7)"), "database is locked")
				_ = rows.Close()
				f.clean(t)
			})
			for _, journal := range []string{"delete", "wal"} {
				t.Run(name+",constraint,"+journal, func(t *testing.T) {
					f := d.open(t, journal)
					f.failed(t, run(under(t, 7), f.pool, f.fence, "INSERT INTO items (id, parent) VALUES (7, 77)"), "FOREIGN KEY constraint failed")
					f.clean(t)
				})
			}
			t.Run(name+",committed", func(t *testing.T) {
				f := d.open(t, "delete")
				err := run(under(t, 7), f.pool, f.fence, "INSERT INTO items (id) VALUES (7)")
				token, looked := f.fence.Current(t.Context(), f.other, "r")
				if err != nil || looked != nil || token != 7 || f.pool.Stats().InUse != 0 {
					t.Errorf("got %v, want it committed with token 7, not %d", err, token)
				}
			})
		}
	}
	t.Run("Advance", func(t *testing.T) {
		f := d.open(t, "delete")
		rows := f.read(t)
		f.failed(t, f.fence.Advance(under(t, 7), f.pool), "database is locked")
		_ = rows.Close()
		f.clean(t)
	})
	t.Run("repeated", func(t *testing.T) {
		f := d.open(t, "delete")
		fence, err := sqlfence.New(sqlfence.SQLite)
		if err != nil {
			t.Fatal(err)
		}
		rows, runs, ctx := f.read(t), 0, under(t, 7)
		err = fence.WithTx(ctx, f.pool, nil, func(ctx context.Context, tx *sql.Tx) error {
			if runs++; runs == 3 {
				_ = rows.Close()
			}
			return exec(ctx, tx, "INSERT INTO items (id) VALUES (7)")
		})
		if err != nil || runs != 3 {
			t.Errorf("got %v after %d runs, want it committed by the third", err, runs)
		}
	})
	// Why the documentation warns of transactions that are not committed by a Fence.
	t.Run("its own", func(t *testing.T) {
		f := d.open(t, "delete")
		rows := f.read(t)
		tx, err := f.pool.Begin()
		if err == nil {
			err = exec(t.Context(), tx, "INSERT INTO items (id) VALUES (7)")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err == nil {
			t.Error("COMMIT among readers succeeds")
		}
		_ = rows.Close()
		if _, err := f.pool.Exec("COMMIT"); (err == nil) != d.Leaves {
			t.Errorf("another COMMIT: got %v, want an error: %t", err, !d.Leaves)
		}
	})
}

// failed checks the error of a COMMIT that failed: nothing is written, and that is known.
func (f *file) failed(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "commit") || !strings.Contains(err.Error(), text) || errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("got %v, want COMMIT refused, %s", err, text)
	}
	if n := f.pool.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}
