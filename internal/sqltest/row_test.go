package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// writeRow runs a statement that writes an order together with its fence. Then it reads the fence, and locks it.
func writeRow(ctx context.Context, tx *sql.Tx, id, token int64, look, write string, args ...any) error {
	if _, err := tx.ExecContext(ctx, write, args...); err != nil {
		return err
	}
	var last int64
	err := tx.QueryRowContext(ctx, look, id).Scan(&last)
	switch {
	case err != nil: // sql.ErrNoRows: the row does not exist
		return err
	case last > token:
		return &sqlfence.StaleError{Resource: "orders", Token: token, Current: last}
	case last < token:
		return errors.New("the statement does not set the fence, or an older holder has just inserted the row")
	}
	return nil
}

func TestRecipeForRows(t *testing.T) {
	paper, err := os.ReadFile(filepath.Join("..", "..", "sqlfence", "RECIPES.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("row_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile(`(?s)// writeRow .*?\n}\n`).FindString(strings.ReplaceAll(string(source), "\r\n", "\n"))
	if code == "" || !strings.Contains(strings.ReplaceAll(string(paper), "\r\n", "\n"), "```go\n"+code+"```") {
		t.Errorf("RECIPES.md lacks\n%s", code)
	}
}

// The statements of the recipe.
func (c *cell) look() string {
	if c.dialect == sqlfence.SQLite {
		return "SELECT fence FROM orders WHERE id = ?"
	}
	return c.q("SELECT fence FROM orders WHERE id = ? FOR UPDATE")
}

func (c *cell) update() string {
	return c.q("UPDATE orders SET status = ?, fence = ? WHERE id = ? AND fence <= ?")
}

func (c *cell) upsert() string {
	if c.dialect == sqlfence.MySQL {
		return "INSERT INTO orders (id, status, fence) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE" +
			" status = IF(fence <= VALUES(fence), VALUES(status), status), fence = GREATEST(fence, VALUES(fence))"
	}
	return c.q("INSERT INTO orders AS o (id, status, fence) VALUES (?, ?, ?)" +
		" ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status, fence = EXCLUDED.fence WHERE o.fence <= EXCLUDED.fence")
}

// execRow runs one statement on an order in a transaction of its own.
func (c *cell) execRow(t *testing.T, id, token int64, query string, args ...any) error {
	tx, err := c.db.BeginTx(background, c.opts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := writeRow(within(t), tx, id, token, c.look(), query, args...); err != nil {
		return err
	}
	return tx.Commit()
}

func (c *cell) order(t *testing.T, id int64) (status string, fence int64) {
	t.Helper()
	err := c.db.QueryRow(c.q("SELECT status, fence FROM orders WHERE id = ?"), id).Scan(&status, &fence)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return status, fence
}

func testRows(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20) NOT NULL, fence bigint NOT NULL)")
	stale := sqlfence.StaleError{Resource: "orders", Token: 6, Current: 8}
	for _, token := range []int64{7, 7, 8} { // the second changes nothing, which MySQL reports like a row not found
		if err := c.execRow(t, 1, token, c.upsert(), 1, "upserted", token); err != nil {
			t.Fatalf("upsert with %d: %v", token, err)
		}
		if err := c.execRow(t, 1, token, c.update(), "updated", token, 1, token); err != nil {
			t.Fatalf("update with %d: %v", token, err)
		}
	}
	wantStale(t, c.execRow(t, 1, 6, c.upsert(), 1, "stale", 6), stale)
	wantStale(t, c.execRow(t, 1, 6, c.update(), "stale", 6, 1, 6), stale)
	if status, fence := c.order(t, 1); status != "updated" || fence != 8 {
		t.Errorf("got %s with %d, want updated with 8", status, fence)
	}
	if err := c.execRow(t, 2, 9, c.update(), "updated", 9, 2, 9); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("no row: got %v, want %v", err, sql.ErrNoRows)
	}
	if err := c.execRow(t, 1, 9, c.q("UPDATE orders SET status = ? WHERE id = ?"), "forgotten", 1); err == nil {
		t.Error("a statement without the fence passes")
	}
	if err := c.execRow(t, 1, 9, c.q("DELETE FROM orders WHERE id = ?"), 1); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("hard delete: got %v, want %v", err, sql.ErrNoRows)
	}
	if status, fence := c.order(t, 1); status != "updated" || fence != 8 {
		t.Errorf("after refusals: got %s with %d, want updated with 8", status, fence)
	}
}

// testRowStays judges a row that the statement has not written: a newer holder must not write it before the end.
func testRowStays(t *testing.T, c *cell) {
	if err := c.execRow(t, 20, 7, c.upsert(), 20, "open", 7); err != nil {
		t.Fatal(err)
	}
	old := c.begin(t)
	err := writeRow(within(t), old, 20, 7, c.look(), "UPDATE orders SET status = 'paid' WHERE id = 20 AND status = 'reserved' AND fence <= 7")
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- c.execRow(t, 20, 8, c.update(), "newer", 8, 20, 8) }()
	select {
	case err := <-wrote:
		t.Errorf("the newer one got past the older: %v", err)
		return
	case <-time.After(50 * time.Millisecond):
	}
	if err := old.Commit(); err != nil {
		t.Error(err)
	}
	if err := <-wrote; err != nil && !strings.Contains(err.Error(), "40001") && !strings.Contains(err.Error(), "1020") {
		t.Errorf("the newer one: %v", err)
	}
}

// testTombstone shows the hazard that the documentation warns of, and the two ways around it.
func testTombstone(t *testing.T, c *cell) {
	for id := int64(10); id < 13; id++ {
		if err := c.execRow(t, id, 7, c.upsert(), id, "open", 7); err != nil {
			t.Fatal(err)
		}
	}
	c.exec(t, "DELETE FROM orders WHERE id = 10")
	if err := c.execRow(t, 10, 6, c.upsert(), 10, "risen", 6); err != nil {
		t.Errorf("the fence of a deleted row seems to outlive it, the documentation says otherwise: %v", err)
	}
	if err := c.execRow(t, 11, 8, c.update(), "deleted", 8, 11, 8); err != nil {
		t.Fatal(err)
	}
	wantStale(t, c.execRow(t, 11, 7, c.upsert(), 11, "risen", 7), sqlfence.StaleError{Resource: "orders", Token: 7, Current: 8})
	err := c.guarded(within(t), "order:12", 8, func(_ context.Context, tx *sql.Tx) error {
		_, err := tx.Exec("DELETE FROM orders WHERE id = 12")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.guarded(within(t), "order:12", 7, func(_ context.Context, tx *sql.Tx) error {
		_, err := tx.Exec(c.upsert(), 12, "risen", 7)
		return err
	})
	wantStale(t, err, sqlfence.StaleError{Resource: "order:12", Token: 7, Current: 8})
}
