package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// The statements of the documentation of ExecRow.
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
	tx := c.begin(t)
	row := sqlfence.Row{Table: "orders", Key: "id", ID: id, Fence: "fence", Token: token}
	if err := c.fence.ExecRow(within(t), tx, row, query, args...); err != nil {
		if !errors.Is(tx.Commit(), sql.ErrTxDone) {
			t.Error("a refused transaction could be committed")
		}
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
	if err := c.execRow(t, 1, 9, c.q("UPDATE orders SET status = ? WHERE id = ?"), "forgotten", 1); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("a statement without the fence: got %v, want %v", err, holdfast.ErrInvalid)
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
	row := sqlfence.Row{Table: "orders", Key: "id", ID: 20, Fence: "fence", Token: 7}
	err := c.fence.ExecRow(within(t), old, row, "UPDATE orders SET status = 'paid' WHERE id = 20 AND status = 'reserved' AND fence <= 7")
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

// interleaved has somebody else act behind the first statement.
type interleaved struct {
	*sql.Tx
	act func()
}

func (tx *interleaved) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := tx.Tx.ExecContext(ctx, query, args...)
	if act := tx.act; act != nil {
		tx.act = nil
		act()
	}
	return result, err
}

// testRowAppears has an older holder insert the row where the statement has found none.
func testRowAppears(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite || c.opts.Isolation > sql.LevelReadCommitted {
		t.Skip("the statement locks what it does not find, or the transaction never sees it")
	}
	tx := c.begin(t)
	row := sqlfence.Row{Table: "orders", Key: "id", ID: 30, Fence: "fence", Token: 9}
	older := func() {
		if err := c.execRow(t, 30, 7, c.upsert(), 30, "older", 7); err != nil {
			t.Error(err)
		}
	}
	if err := c.fence.ExecRow(within(t), &interleaved{tx, older}, row, c.update(), "mine", 9, 30, 9); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if status, fence := c.order(t, 30); status != "mine" || fence != 9 {
		t.Errorf("got %s with %d, want mine with 9", status, fence)
	}
}

// testRowTypes has tokens in columns that compare as texts, of which 9 is larger than 10, and in those that do not.
func testRowTypes(t *testing.T, c *cell) {
	types := map[string]bool{"bigint": true, "integer": true, "smallint": true, "numeric(20)": true, "varchar(20)": false, "text": false, "char(20)": false}
	switch c.dialect {
	case sqlfence.Postgres:
		c.exec(t, "CREATE DOMAIN token AS bigint CHECK (VALUE > 0)")
		types["token"] = true
	case sqlfence.MySQL:
		types["bigint unsigned"], types["varbinary(20)"], types["blob"] = true, false, false
	}
	n := 0
	for column, good := range types {
		n++
		table := fmt.Sprintf("typed%d", n)
		c.exec(t, "CREATE TABLE "+table+" (id bigint PRIMARY KEY, fence "+column+" NOT NULL)")
		c.exec(t, "INSERT INTO "+table+" (id, fence) VALUES (1, '10')")
		write := func(token int) error {
			upsert := "INSERT INTO %s AS o (id, fence) VALUES (1, '%d') ON CONFLICT (id) DO UPDATE SET fence = EXCLUDED.fence WHERE o.fence <= EXCLUDED.fence"
			if c.dialect == sqlfence.MySQL {
				upsert = "INSERT INTO %s (id, fence) VALUES (1, '%d') ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))"
			}
			tx := c.begin(t)
			row := sqlfence.Row{Table: table, Key: "id", ID: 1, Fence: "fence", Token: int64(token)}
			if err := c.fence.ExecRow(within(t), tx, row, fmt.Sprintf(upsert, table, token)); err != nil {
				return err
			}
			return tx.Commit()
		}
		for _, token := range []int{11, 9} {
			err := write(token)
			switch {
			case !good && !errors.Is(err, holdfast.ErrInvalid):
				t.Errorf("%s: token %d over '10': got %v, want %v", column, token, err, holdfast.ErrInvalid)
			case good && token == 11 && err != nil:
				t.Errorf("%s: token 11 over 10: %v", column, err)
			case good && token == 9:
				wantStale(t, err, sqlfence.StaleError{Resource: table, Token: 9, Current: 11})
			}
		}
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
	err := c.guarded(within(t), "order:12", 8, func(tx *sql.Tx) error {
		_, err := tx.Exec("DELETE FROM orders WHERE id = 12")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.guarded(within(t), "order:12", 7, func(tx *sql.Tx) error {
		_, err := tx.Exec(c.upsert(), 12, "risen", 7)
		return err
	})
	wantStale(t, err, sqlfence.StaleError{Resource: "order:12", Token: 7, Current: 8})
}
