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

func nothing(context.Context, *sql.Tx) error { return nil }

// guarded runs fn under a token for the resource.
func (c *cell) guarded(ctx context.Context, resource string, token int64, fn func(_ context.Context, tx *sql.Tx) error) error {
	return c.fence.WithTx(sqlfence.Mark{Resource: resource, Token: token}.In(ctx), c.db, c.opts, fn)
}

func wantStale(t *testing.T, err error, want sqlfence.StaleError) {
	t.Helper()
	var stale *sqlfence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, sqlfence.ErrStale) || *stale != want {
		t.Errorf("got %v, want %v", err, &want)
	}
}

func testOlderIsRefused(t *testing.T, c *cell) {
	c = c.anyToken(t)
	c.exec(t, "CREATE TABLE notes (n bigint)")
	note := func(n int) func(context.Context, *sql.Tx) error {
		return func(_ context.Context, tx *sql.Tx) error {
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
	err := c.fence.Guard(mark("older", 1).In(within(t)), tx)
	wantStale(t, err, sqlfence.StaleError{Resource: "older", Token: 1, Current: high})
	if err := note(3)(background, tx); !errors.Is(err, sql.ErrTxDone) {
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

// anyToken is the cell with a fence for tokens that are not times.
func (c *cell) anyToken(t *testing.T) *cell {
	other := *c
	var err error
	if other.fence, err = sqlfence.New(c.dialect, sqlfence.WithAnyToken()); err != nil {
		t.Fatal(err)
	}
	return &other
}

// A token that is ahead of the database's clock would shut out all later ones. It leaves nothing behind, and nor does it hide
// that it is stale.
func testAhead(t *testing.T, c *cell) {
	now := time.Now()
	near, far := now.Add(59*time.Minute).UnixMicro(), now.Add(61*time.Minute).UnixMicro()
	const last = 1<<53 - 1
	ways := c.ways(t)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, sqlfence.ErrStale) || !strings.Contains(err.Error(), "ahead of the database's clock") {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
	for _, w := range ways {
		resource := fmt.Sprintf("ahead:%d", databases.Add(1))
		for _, before := range []int64{0, 7, now.UnixMicro()} {
			for _, token := range []int64{far, last} {
				if before > 0 {
					if err := c.fence.Advance(mark(resource, before).In(within(t)), c.db); err != nil {
						t.Fatal(err)
					}
				}
				_, err := w.run(within(t), mark(resource, token))
				refused(w.name, err)
				if !w.byHand {
					_, err := w.run(within(t), sqlfence.Mark{Resource: resource, Token: token, Parallel: true})
					refused(w.name+", parallel", err)
				}
				if got, err := c.fence.Current(within(t), c.db, resource); got != before || err != nil {
					t.Errorf("%s: got %d, %v, want %d as before", w.name, got, err, before)
				}
			}
		}
		for _, token := range []int64{now.UnixMicro(), near} {
			if n, err := w.run(within(t), mark(resource, token)); err != nil || n != 1 {
				t.Errorf("%s, %v ahead: got %v", w.name, time.UnixMicro(token).Sub(now), err)
			}
		}
		// What another fence has let through stays the largest, and the same token is no better than before.
		if err := c.anyToken(t).fence.Advance(mark(resource, last).In(within(t)), c.db); err != nil {
			t.Fatal(err)
		}
		_, err := w.run(within(t), mark(resource, near))
		wantStale(t, err, sqlfence.StaleError{Resource: resource, Token: near, Current: last})
		_, err = w.run(within(t), mark(resource, far))
		wantStale(t, err, sqlfence.StaleError{Resource: resource, Token: far, Current: last})
		_, err = w.run(within(t), mark(resource, last))
		refused(w.name+", again", err)
	}
}

// testNewerWaits holds an older transaction open: the newer one must not get past its guard before it ends.
func testNewerWaits(t *testing.T, c *cell) {
	old := c.begin(t)
	if err := c.fence.Guard(mark("waits", 5).In(within(t)), old); err != nil {
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
	err := c.fence.Guard(mark("before", 5).In(within(t)), tx)
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
	if err := c.guarded(within(t), "restores", 7, func(context.Context, *sql.Tx) error { return mine }); err != mine {
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
	if err := c.fence.Advance(under(within(t), mark("closes", 7), mark("and", 7)), c.db); err != nil {
		t.Fatal(err)
	}
	wantStale(t, c.guarded(within(t), "closes", 5, nothing), sqlfence.StaleError{Resource: "closes", Token: 5, Current: 7})
	wantStale(t, c.fence.Advance(mark("closes", 5).In(within(t)), c.db), sqlfence.StaleError{Resource: "closes", Token: 5, Current: 7})
}

// testNothingIsLost counts with as naive a read, modify and write as there is.
func testNothingIsLost(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE counter (n bigint)")
	c.exec(t, "INSERT INTO counter (n) VALUES (0)")
	fence, err := sqlfence.New(c.dialect, sqlfence.WithRetries(100))
	if err != nil {
		t.Fatal(err)
	}
	ctx := sqlfence.Mark{Resource: "nothing", Token: 1}.In(within(t))
	const holders, each = 4, 5
	var all sync.WaitGroup
	for range holders {
		all.Go(func() {
			for range each {
				err := fence.WithTx(ctx, c.db, c.opts, func(_ context.Context, tx *sql.Tx) error {
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

// testAdvice gives the fence a table that is not there, and the dialects of other databases: the errors say what to do.
func testAdvice(t *testing.T, c *cell) {
	missing, err := sqlfence.New(c.dialect, sqlfence.WithTable("not_there"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(context.Context, *sql.Tx) error { t.Error("fn runs"); return nil }
	for what, err := range map[string]error{
		"Advance": missing.Advance(mark("r", 7).In(within(t)), c.db),
		"WithTx":  missing.WithTx(sqlfence.Mark{Resource: "r", Token: 7}.In(within(t)), c.db, nil, write),
		"Current": func() error { _, err := missing.Current(within(t), c.db, "r"); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "there is no table not_there") || !strings.Contains(err.Error(), "fence.DDL()") ||
			!strings.Contains(err.Error(), "sqlfence/migrations") {
			t.Errorf("%s without the table: got %v, want what to run", what, err)
		}
	}
	for _, d := range []sqlfence.Dialect{sqlfence.Postgres, sqlfence.MySQL, sqlfence.SQLite} {
		if d == c.dialect {
			continue
		}
		other, err := sqlfence.New(d)
		if err != nil {
			t.Fatal(err)
		}
		err = other.Advance(mark("r", 7).In(within(t)), c.db)
		if err == nil || !strings.Contains(err.Error(), "the fence is for "+d.String()) {
			t.Errorf("with a fence for %v: got %v, want that it is one", d, err)
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
				if err := f.Advance(mark("ddl", 7).In(within(t)), c.db); err != nil {
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
