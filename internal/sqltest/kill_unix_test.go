//go:build unix

package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// victim writes more than SQLite keeps in memory within a guarded transaction, and stays there.
func victim(db *sql.DB, c *cell) error {
	ctx := sqlfence.Mark{Resource: "killed", Token: 7}.In(background)
	return c.fence.WithTx(ctx, db, nil, func(_ context.Context, tx *sql.Tx) error {
		if c.dialect == sqlfence.SQLite {
			if _, err := tx.Exec("PRAGMA cache_size = 2"); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(c.q("UPDATE killed SET writer = ?"), strings.Repeat("killed", 200)); err != nil {
			return err
		}
		fmt.Println("halfway")
		_, _ = os.Stdin.Read(make([]byte, 1))
		return nil
	})
}

// testKilled kills a process within its guarded transaction. Nothing of it is left, its token neither, and the next
// holder does not wait for it.
func testKilled(t *testing.T, c *cell, driver string) {
	nobody := strings.Repeat("nobody", 200)
	c.exec(t, "CREATE TABLE killed (writer varchar(1200))")
	for range 50 {
		c.exec(t, "INSERT INTO killed (writer) VALUES (?)", nobody)
	}
	p := c.process(t, "victim", driver, "")
	p.says(t, "halfway")
	if file, _, _ := strings.Cut(strings.TrimPrefix(c.dsn, "file:"), "?"); c.dialect == sqlfence.SQLite {
		suffix := map[bool]string{true: "-wal", false: "-journal"}[strings.HasPrefix(c.name, "wal")]
		if info, err := os.Stat(file + suffix); err != nil || info.Size() < 20_000 {
			t.Fatalf("%s: %v, want the pages of 50 rows in it", suffix, err)
		}
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()

	for _, token := range []int64{6, 8} { // it took its token along
		err := c.guarded(within(t), "killed", token, func(_ context.Context, tx *sql.Tx) error {
			var n int
			err := tx.QueryRow(c.q("SELECT count(*) FROM killed WHERE writer = ?"), nobody).Scan(&n)
			if n != 50 {
				t.Errorf("token %d: got %d rows that nobody has written, want 50", token, n)
			}
			return err
		})
		if err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	wantStale(t, c.guarded(within(t), "killed", 7, nothing), sqlfence.StaleError{Resource: "killed", Token: 7, Current: 8})
	if c.dialect == sqlfence.SQLite {
		var whole string
		if err := c.db.QueryRow("PRAGMA integrity_check").Scan(&whole); err != nil || whole != "ok" {
			t.Errorf("integrity: got %s, %v", whole, err)
		}
	}
}
