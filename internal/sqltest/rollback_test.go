package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// way guards a transaction by a mark and commits it. It returns how many transactions were begun.
type way struct {
	name   string
	byHand bool // nobody is there to begin again
	run    func(ctx context.Context, m sqlfence.Mark) (begun int, err error)
}

// beginsOf counts the transactions that are begun on a database.
type beginsOf struct {
	sqlfence.DB
	n *int
}

func (b beginsOf) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	*b.n++
	return b.DB.BeginTx(ctx, opts)
}

type beginsOfPgx struct {
	pgxfence.DB
	n *int
}

func (b beginsOfPgx) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	*b.n++
	return b.DB.BeginTx(ctx, opts)
}

func (c *cell) ways(t *testing.T) []way {
	committed := func(ctx context.Context, tx *sql.Tx, err error) error {
		if err != nil {
			return err
		}
		return c.fence.Commit(ctx, tx)
	}
	ways := []way{
		{"Guard", true, func(ctx context.Context, m sqlfence.Mark) (int, error) {
			tx := c.begin(t)
			return 1, committed(ctx, tx, c.fence.Guard(m.In(ctx), tx))
		}},
		{"WithTx", false, func(ctx context.Context, m sqlfence.Mark) (n int, err error) {
			err = c.fence.WithTx(m.In(ctx), beginsOf{c.db, &n}, c.opts, nothing)
			return n, err
		}},
		{"BeginTx", false, func(ctx context.Context, m sqlfence.Mark) (n int, err error) {
			tx, err := c.fence.BeginTx(m.In(ctx), beginsOf{c.db, &n}, c.opts)
			return n, committed(ctx, tx, err)
		}},
	}
	if c.dialect != sqlfence.Postgres {
		return ways
	}
	pool, err := pgxpool.New(background, c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	opts := pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(c.opts.Isolation.String()))}
	return append(ways,
		way{"pgx Guard", true, func(ctx context.Context, m sqlfence.Mark) (int, error) {
			tx, err := pool.BeginTx(ctx, opts)
			if err == nil {
				err = pgxfence.Guard(m.In(ctx), c.fence, tx)
			}
			if err != nil {
				return 1, err
			}
			return 1, pgxfence.Commit(ctx, c.fence, tx)
		}},
		way{"pgx WithTx", false, func(ctx context.Context, m sqlfence.Mark) (n int, err error) {
			err = pgxfence.WithTx(m.In(ctx), c.fence, beginsOfPgx{pool, &n}, opts, func(context.Context, pgx.Tx) error { return nil })
			return n, err
		}},
	)
}

// left are the traces of others that a holder finds at a guard row. None of them has committed a token.
func (c *cell) traces(t *testing.T) map[string]func(resource string, token int64) {
	raised := func(resource string, token int64) *sql.Tx {
		tx := c.begin(t)
		if err := c.fence.Guard(mark(resource, token).In(within(t)), tx); err != nil && !errors.Is(err, holdfast.ErrInvalid) {
			t.Fatal(err)
		}
		return tx
	}
	all := map[string]func(resource string, token int64){
		"rollback": func(resource string, token int64) { _ = raised(resource, token).Rollback() },
	}
	if c.dialect != sqlfence.Postgres {
		return all
	}
	exec := func(tx *sql.Tx, queries ...string) {
		for _, query := range queries {
			if _, err := tx.ExecContext(within(t), query); err != nil {
				t.Fatalf("%s: %v", query, err)
			}
		}
	}
	all["rollback to a savepoint"] = func(resource string, token int64) {
		tx := c.begin(t)
		exec(tx, "SAVEPOINT before")
		if err := c.fence.Guard(mark(resource, token).In(within(t)), tx); errors.Is(err, holdfast.ErrInvalid) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		exec(tx, "ROLLBACK TO SAVEPOINT before")
		must(t, "commit", tx.Commit())
	}
	all["a statement that fails"] = func(resource string, token int64) {
		tx := raised(resource, token)
		_, _ = tx.Exec("SELECT 1/0")
		_ = tx.Rollback()
	}
	for _, lock := range []string{"UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"} {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			all["FOR "+lock+" "+end] = func(resource string, token int64) {
				tx := c.begin(t)
				exec(tx, fmt.Sprintf("SELECT FROM sqlfence WHERE resource = '%s' FOR %s", resource, lock))
				if end == "COMMIT" {
					must(t, end, tx.Commit())
				} else {
					must(t, end, tx.Rollback())
				}
			}
		}
	}
	all["several lock it"] = func(resource string, token int64) { // a group of them gets a number of its own in the row
		query := fmt.Sprintf("SELECT FROM sqlfence WHERE resource = '%s' FOR ", resource)
		first, second := c.begin(t), c.begin(t)
		exec(first, query+"SHARE")
		exec(second, query+"KEY SHARE", "SAVEPOINT sub", query+"SHARE", "ROLLBACK TO SAVEPOINT sub")
		must(t, "commit", first.Commit())
		must(t, "rollback", second.Rollback())
	}
	all["an update that is rolled back"] = func(resource string, token int64) {
		tx := c.begin(t)
		exec(tx, fmt.Sprintf("UPDATE sqlfence SET token = token + 1, parallel = NOT parallel WHERE resource = '%s'", resource))
		must(t, "rollback", tx.Rollback())
	}
	for _, query := range []string{"VACUUM sqlfence", "VACUUM (FREEZE) sqlfence"} {
		all["rollback, "+query] = func(resource string, token int64) {
			_ = raised(resource, token).Rollback()
			c.exec(t, query)
		}
		all["FOR UPDATE, "+query] = func(resource string, token int64) {
			all["FOR UPDATE COMMIT"](resource, token)
			c.exec(t, query)
		}
	}
	// Sessions of their own, as those of the cell go back to its pool.
	doomed := func() (tx *sql.Tx, terminate func()) {
		w := c.waiter(t)
		tx, err := w.db.BeginTx(within(t), c.opts)
		if err != nil {
			t.Fatal(err)
		}
		return tx, func() {
			c.exec(t, "SELECT pg_terminate_backend(?)", w.session)
			c.gone(t, w.session)
		}
	}
	all["terminated before the guard"] = func(resource string, token int64) {
		tx, terminate := doomed()
		terminate()
		if err := c.fence.Guard(mark(resource, token).In(within(t)), tx); err == nil {
			t.Error("a session that has ended passes the guard")
		}
	}
	all["terminated behind the guard"] = func(resource string, token int64) {
		tx, terminate := doomed()
		_ = c.fence.Guard(mark(resource, token).In(within(t)), tx)
		terminate()
		_ = tx.Rollback()
	}
	all["terminated behind a write"] = func(resource string, token int64) {
		tx, terminate := doomed()
		if c.fence.Guard(mark(resource, token).In(within(t)), tx) == nil {
			exec(tx, "CREATE TABLE IF NOT EXISTS never (n bigint)")
		}
		terminate()
		if err := c.fence.Commit(within(t), tx); err == nil {
			t.Error("a session that has ended commits")
		}
	}
	all["terminated while it waits"] = func(resource string, token int64) {
		before := c.begin(t)
		exec(before, fmt.Sprintf("SELECT FROM sqlfence WHERE resource = '%s' FOR UPDATE", resource))
		w := c.waiter(t)
		tx, err := w.db.BeginTx(within(t), c.opts)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.fence.Guard(mark(resource, token).In(within(t)), tx) }()
		for !w.waits(t) {
		}
		c.exec(t, "SELECT pg_terminate_backend(?)", w.session)
		if err := <-done; err == nil {
			t.Error("a session that was ended passes the guard")
		}
		c.gone(t, w.session)
		must(t, "commit", before.Commit())
	}
	return all
}

// gone waits for the end of a session of PostgreSQL.
func (c *cell) gone(t *testing.T, session int) {
	t.Helper()
	for ctx := within(t); c.number(t, "SELECT count(*) FROM pg_stat_activity WHERE pid = ?", session) > 0; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the session does not end")
		}
	}
}

// What others leave at a guard row without a commit of their token is nothing to the next holder: it is not refused, and needs
// one transaction. What transactions in parallel did is told, whatever others leave there meanwhile.
func testTraces(t *testing.T, c *cell) {
	strict := c.dialect == sqlfence.Postgres && c.opts.Isolation > sql.LevelReadCommitted
	ways := c.ways(t)
	for what, leave := range c.traces(t) {
		for _, w := range ways {
			resource := fmt.Sprintf("trace:%d", databases.Add(1))
			at := fmt.Sprintf("%s, %s", what, w.name)
			token := int64(7)
			want := func(about string, begins int) {
				t.Helper()
				leave(resource, token+100)
				token++
				n, err := w.run(within(t), mark(resource, token))
				if err != nil || n != begins {
					t.Errorf("%s, %s: got %v after %d transactions, want %d", at, about, err, n, begins)
				}
			}
			if err := c.guarded(within(t), resource, token, nothing); err != nil {
				t.Fatal(err)
			}
			want("alone", 1)
			want("alone again", 1)
			if w.byHand && c.dialect != sqlfence.SQLite {
				// Advance by hand opens the row for others, and a newer Advance closes it.
				shared := sqlfence.Mark{Resource: resource, Token: token + 1, Parallel: true}
				if err := c.fence.Advance(shared.In(within(t)), c.db); err != nil {
					t.Fatal(err)
				}
				if n, err := w.run(within(t), shared); err != nil || n != 1 {
					t.Errorf("%s, parallel: got %v", at, err)
				}
			} else if err := c.parallel(within(t), resource, token+1, nothing); err != nil {
				t.Fatal(err)
			}
			token++
			if !strict {
				want("behind parallel ones", 1)
				continue
			}
			if !w.byHand {
				want("behind parallel ones", 2)
				want("behind one alone", 1)
				continue
			}
			for range 2 { // a refusal changes nothing
				leave(resource, token+100)
				if _, err := w.run(within(t), mark(resource, token+1)); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "Advance") {
					t.Errorf("%s, behind parallel ones: got %v, want that Advance comes first", at, err)
				}
			}
			if err := c.fence.Advance(mark(resource, token+1).In(within(t)), c.db); err != nil {
				t.Fatal(err)
			}
			want("after Advance", 1)
		}
	}
}

// A row that was pruned and made again knows nothing of the parallel ones before.
func testPrunedRowIsNew(t *testing.T, c *cell) {
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable("pruned_and_new"))
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, f.DDL())
	old := time.Now().Add(-3 * time.Hour).UnixMicro()
	ctx := sqlfence.Mark{Resource: "r", Token: old, Parallel: true}.In(within(t))
	if err := f.WithTx(ctx, c.db, c.opts, nothing); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Prune(within(t), c.db, time.Hour); n != 1 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	tx := c.begin(t)
	if err := f.Guard(mark("r", old+1).In(within(t)), tx); err != nil {
		t.Error(err)
	}
	must(t, "commit", tx.Commit())
	if err := f.WithTx(sqlfence.Mark{Resource: "r", Token: old + 1, Parallel: true}.In(within(t)), c.db, c.opts, nothing); err != nil {
		t.Error(err)
	}
}

// testOtherTable has a table that lacks a column.
func testOtherTable(t *testing.T, c *cell) {
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable("other_table"))
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, "CREATE TABLE other_table (resource text PRIMARY KEY, token bigint NOT NULL)")
	for _, parallel := range []bool{false, true} {
		_, err := f.BeginTx(sqlfence.Mark{Resource: "r", Token: 7, Parallel: parallel}.In(within(t)), c.db, c.opts)
		const add = "ALTER TABLE other_table ADD COLUMN parallel boolean NOT NULL DEFAULT false"
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), add) {
			t.Errorf("got %v, want what to do", err)
		}
	}
	c.exec(t, "ALTER TABLE other_table ADD COLUMN parallel boolean NOT NULL DEFAULT false")
	if err := f.Advance(mark("r", 7).In(within(t)), c.db); err != nil {
		t.Error(err)
	}
}

// byHand guards a transaction that nobody repeats.
func byHand(ctx context.Context, c *cell, db *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error {
	tx, err := db.BeginTx(ctx, c.opts)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := c.fence.Guard(under(ctx, marks...), tx); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return c.fence.Commit(ctx, tx)
}

// trouble does at the guard rows what administrators and other programs do: it locks them, vacuums, and ends sessions.
func (r *round) trouble(draw *rand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(background)
	if r.c.dialect != sqlfence.Postgres {
		return cancel
	}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(upTo(draw, 4*time.Millisecond))
			row := fmt.Sprintf("SELECT FROM sqlfence WHERE resource = '%s' FOR ", r.resources[draw.IntN(2)])
			switch n := draw.IntN(8); n {
			case 0:
				_, _ = r.c.db.ExecContext(ctx, "VACUUM sqlfence")
			case 1:
				_, _ = r.c.db.ExecContext(ctx, "VACUUM (FREEZE) sqlfence")
			case 2, 3:
				_, _ = r.c.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
					WHERE datname = current_database() AND application_name = '`+fragile+`' ORDER BY random() LIMIT 1) AS a`)
			default:
				tx, err := r.c.db.BeginTx(ctx, nil)
				if err != nil {
					continue
				}
				_, _ = tx.ExecContext(ctx, row+[]string{"UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"}[n-4])
				if draw.IntN(2) == 0 {
					_ = tx.Commit()
				}
				_ = tx.Rollback()
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
