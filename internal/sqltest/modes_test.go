package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// testModes goes through the settings of drivers and sessions that change how statements and names travel. What a
// holder does with one of them, those with others see.
func testModes(t *testing.T, c *cell, driver string, settings ...string) {
	for _, setting := range settings {
		t.Run(setting, func(t *testing.T) {
			db, err := sql.Open(driver, c.dsn+"&"+setting)
			if err != nil {
				t.Fatal(err)
			}
			other := *c
			other.db = closing(t, db)
			other.opts = nil // with autocommit off a level can only be set while nothing was read
			other.exec(t, c.fence.DDL())
			other.testSurface(t, "surface", func(ctx context.Context, id int64, status string) error {
				return c.fence.WithTx(ctx, other.db, nil, func(_ context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
					return err
				})
			})
			base := 1000 * (1 + databases.Add(1))
			if !strings.Contains(setting, "character_set_connection") {
				testNames(t, &other, c, base)
				return
			}
			// The names would be changed on their way, the second one to a name that has a row. It is refused before it can do harm.
			if err := c.guarded(within(t), "??", base-1, nothing); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"á", "日本"} {
				if err := other.guarded(within(t), name, base, nothing); err == nil || errors.Is(err, sqlfence.ErrStale) {
					t.Errorf("%s: got %v, want an error about the row", name, err)
				}
				if got, err := c.fence.Current(within(t), c.db, name); got >= base || err != nil {
					t.Errorf("%s: got %d, %v, want nothing raised", name, got, err)
				}
			}
		})
	}
}

// testTables has the guard rows in another schema, database or file.
func testTables(t *testing.T, c *cell) {
	conn, err := c.db.Conn(within(t)) // SQLite attaches files to one connection
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	create := "CREATE SCHEMA elsewhere" // a database, to MySQL
	if c.dialect == sqlfence.SQLite {
		create = "ATTACH '" + filepath.Join(t.TempDir(), "elsewhere") + "' AS elsewhere"
	}
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable("elsewhere.order"))
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{create, f.DDL(), f.DDL()} {
		if _, err := conn.ExecContext(within(t), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	for _, token := range []int64{7, 7, 9} {
		if err := f.Advance(mark("table", token).In(within(t)), conn); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	wantStale(t, f.Advance(mark("table", 8).In(within(t)), conn), sqlfence.StaleError{Resource: "table", Token: 8, Current: 9})
	if got, err := f.Current(within(t), conn, "table"); got != 9 || err != nil {
		t.Errorf("got %d, %v, want 9", got, err)
	}
	if got, err := c.fence.Current(within(t), conn, "table"); got != 0 || err != nil {
		t.Errorf("in the other table: got %d, %v, want 0", got, err)
	}
	// It cannot be raised where nothing may be written.
	tx, err := conn.BeginTx(within(t), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Guard(mark("table", 9).In(within(t)), tx); c.dialect != sqlfence.SQLite && err == nil { // modernc does not mind
		t.Error("a read-only transaction is guarded")
	}
	_ = tx.Rollback()
}
