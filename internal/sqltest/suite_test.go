package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func mark(resource string, token int64) sqlfence.Mark {
	return sqlfence.Mark{Resource: resource, Token: token}
}

func nothing(*sql.Tx) error { return nil }

// guarded runs fn under a token for the resource.
func (c *cell) guarded(ctx context.Context, resource string, token int64, fn func(tx *sql.Tx) error) error {
	return c.fence.WithTx(sqlfence.WithToken(ctx, resource, token), c.db, c.opts, fn)
}

func wantStale(t *testing.T, err error, want sqlfence.StaleError) {
	t.Helper()
	var stale *sqlfence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, sqlfence.ErrStale) || *stale != want {
		t.Errorf("got %v, want %v", err, &want)
	}
}

func testOlderIsRefused(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE notes (n bigint)")
	note := func(n int) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.Exec(c.q("INSERT INTO notes (n) VALUES (?)"), n)
			return err
		}
	}
	const high = 1<<53 - 1
	for _, token := range []int64{high - 2, high - 2, high, high} {
		if err := c.guarded(within(t), "older", token, note(1)); err != nil {
			t.Fatalf("token %d: %v", token, err)
		}
	}
	wantStale(t, c.guarded(within(t), "older", high-1, note(2)), sqlfence.StaleError{Resource: "older", Token: high - 1, Current: high})
	tx := c.begin(t)
	err := c.fence.Guard(within(t), tx, mark("older", 1))
	wantStale(t, err, sqlfence.StaleError{Resource: "older", Token: 1, Current: high})
	if err := note(3)(tx); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("write after an ignored refusal: got %v, want %v", err, sql.ErrTxDone)
	}
	if got := c.number(t, "SELECT count(*) FROM notes WHERE n = 1"); got != 4 {
		t.Errorf("got %d rows of the holder, want 4", got)
	}
	if got := c.number(t, "SELECT count(*) FROM notes WHERE n > 1"); got != 0 {
		t.Errorf("got %d rows of stale holders, want none", got)
	}
	if got, err := c.fence.Current(within(t), c.db, "older"); got != high || err != nil {
		t.Errorf("Current: got %d, %v, want %d", got, err, int64(high))
	}
}

// testNewerWaits holds an older transaction open: the newer one must not get past its guard before it ends.
func testNewerWaits(t *testing.T, c *cell) {
	old := c.begin(t)
	if err := c.fence.Guard(within(t), old, mark("waits", 5)); err != nil {
		t.Fatal(err)
	}
	passed := make(chan error, 1)
	go func() { passed <- c.guarded(within(t), "waits", 7, nothing) }()
	select {
	case err := <-passed:
		t.Fatalf("the newer one got past the older: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := old.Commit(); err != nil {
		t.Errorf("the older one: %v", err)
	}
	if err := <-passed; err != nil {
		t.Errorf("the newer one: %v", err)
	}
	wantStale(t, c.guarded(within(t), "waits", 5, nothing), sqlfence.StaleError{Resource: "waits", Token: 5, Current: 7})
}

// testReadBeforeGuard begins with a read, which it should not. What was read may be old; the token must not be judged
// by that snapshot all the same.
func testReadBeforeGuard(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite && c.name != "wal,deferred" {
		t.Skip("the reader keeps the writer out")
	}
	if err := c.guarded(within(t), "before", 5, nothing); err != nil {
		t.Fatal(err)
	}
	tx := c.begin(t)
	var n int64
	if err := tx.QueryRow("SELECT count(*) FROM notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := c.guarded(within(t), "before", 7, nothing); err != nil {
		t.Fatal(err)
	}
	err := c.fence.Guard(within(t), tx, mark("before", 5))
	if err == nil {
		t.Fatal("passed")
	}
	t.Log(err) // stale, or the engine's own refusal of a snapshot that is too old
	if !errors.Is(tx.Commit(), sql.ErrTxDone) {
		t.Error("not rolled back")
	}
}

func testRollbackRestores(t *testing.T, c *cell) {
	mine := errors.New("mine")
	if err := c.guarded(within(t), "restores", 5, nothing); err != nil {
		t.Fatal(err)
	}
	if err := c.guarded(within(t), "restores", 7, func(*sql.Tx) error { return mine }); err != mine {
		t.Fatalf("got %v, want %v", err, mine)
	}
	if err := c.guarded(within(t), "restores", 5, nothing); err != nil {
		t.Errorf("refused because of a token that was rolled back: %v", err)
	}
}

func testAdvanceCloses(t *testing.T, c *cell) {
	if err := c.guarded(within(t), "closes", 5, nothing); err != nil {
		t.Fatal(err)
	}
	if err := c.fence.Advance(within(t), c.db, mark("closes", 7), mark("and", 7)); err != nil {
		t.Fatal(err)
	}
	wantStale(t, c.guarded(within(t), "closes", 5, nothing), sqlfence.StaleError{Resource: "closes", Token: 5, Current: 7})
	wantStale(t, c.fence.Advance(within(t), c.db, mark("closes", 5)), sqlfence.StaleError{Resource: "closes", Token: 5, Current: 7})
}

// testNothingIsLost counts with as naive a read, modify and write as there is.
func testNothingIsLost(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE counter (n bigint)")
	c.exec(t, "INSERT INTO counter (n) VALUES (0)")
	fence, err := sqlfence.New(c.dialect, sqlfence.WithRetries(100))
	if err != nil {
		t.Fatal(err)
	}
	ctx := sqlfence.WithToken(within(t), "nothing", 1)
	const holders, each = 4, 5
	var all sync.WaitGroup
	for range holders {
		all.Go(func() {
			for range each {
				err := fence.WithTx(ctx, c.db, c.opts, func(tx *sql.Tx) error {
					var n int64
					if err := tx.QueryRow("SELECT n FROM counter").Scan(&n); err != nil {
						return err
					}
					_, err := tx.Exec(c.q("UPDATE counter SET n = ?"), n+1)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := c.number(t, "SELECT n FROM counter"); got != holders*each {
		t.Errorf("counted %d, want %d", got, holders*each)
	}
}

// testResources looks for names that an engine takes for the same, or does not keep.
func testResources(t *testing.T, c *cell) { testNames(t, c, c, 1000) }

func testNames(t *testing.T, writer, reader *cell, base int64) {
	names := []string{
		"a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "%", "a\nb", `a\b`, `a'b"c`, "0", "00", "日本", "😀",
		strings.Repeat("k", 512), strings.Repeat("k", 511), strings.Repeat("é", 256), "{order:42}",
	}
	for i, name := range names {
		if err := writer.guarded(within(t), name, base+int64(i), nothing); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	for i, name := range names {
		if got, err := reader.fence.Current(within(t), reader.db, name); got != base+int64(i) || err != nil {
			t.Errorf("%q: got %d, %v, want %d", name, got, err, base+int64(i))
		}
	}
}

func testConcurrentDDL(t *testing.T, c *cell) {
	for round := range 3 {
		f, err := sqlfence.New(c.dialect, sqlfence.WithTable(fmt.Sprintf("Fence_%d", round)))
		if err != nil {
			t.Fatal(err)
		}
		start := make(chan struct{})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				<-start
				if _, err := c.db.ExecContext(within(t), f.DDL()); err != nil {
					t.Error(err)
				}
				if err := f.Advance(within(t), c.db, mark("ddl", 7)); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		if got, err := f.Current(within(t), c.db, "ddl"); got != 7 || err != nil {
			t.Errorf("got %d, %v, want 7", got, err)
		}
	}
}

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
	if err := c.execRow(t, 1, 9, c.q("UPDATE orders SET status = ? WHERE id = ?"), "forgotten", 1); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("a statement without the fence: got %v, want %v", err, core.ErrInvalid)
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
			case !good && !errors.Is(err, core.ErrInvalid):
				t.Errorf("%s: token %d over '10': got %v, want %v", column, token, err, core.ErrInvalid)
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
