package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/gorm"
)

// What libraries call a transaction is one.
var (
	_ sqlfence.Tx = (*sql.Tx)(nil)
	_ sqlfence.Tx = (*sqlx.Tx)(nil)
	_ sqlfence.Tx = bun.Tx{}.Tx
	_ sqlfence.Tx = (*gorm.PreparedStmtTX)(nil)

	_ sqlfence.DB = (*sql.DB)(nil)
	_ sqlfence.DB = (*sql.Conn)(nil)
	_ sqlfence.DB = (*sqlx.DB)(nil)
)

// What sqlc generates, in short.
type (
	dbtx interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
		PrepareContext(context.Context, string) (*sql.Stmt, error)
		QueryContext(context.Context, string, ...any) (*sql.Rows, error)
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}
	queries struct{ db dbtx }
)

func (q *queries) setStatus(ctx context.Context, query string, id int64, status string) error {
	_, err := q.db.ExecContext(ctx, query, status, id)
	return err
}

const markPaid = "UPDATE items SET status = ? WHERE id = ?"

// surface guards and writes in a transaction of some library.
type surface func(ctx context.Context, id int64, status string) error

// testSurface has a holder write, and one whose token is older be refused.
func (c *cell) testSurface(t *testing.T, name string, write surface) {
	t.Run(name, func(t *testing.T) {
		t.Helper()
		id := databases.Add(1)
		c.exec(t, "INSERT INTO items (id, status) VALUES (?, 'new')", id)
		resource := fmt.Sprintf("item:%d", id)
		for _, token := range []int64{7, 7, 8} {
			if err := write(sqlfence.Mark{Resource: resource, Token: token}.In(within(t)), id, fmt.Sprint(token)); err != nil {
				t.Fatalf("token %d: %v", token, err)
			}
		}
		err := write(sqlfence.Mark{Resource: resource, Token: 7}.In(within(t)), id, "stale")
		wantStale(t, err, sqlfence.StaleError{Resource: resource, Token: 7, Current: 8})
		var status string
		if err := c.db.QueryRow(c.q("SELECT status FROM items WHERE id = ?"), id).Scan(&status); err != nil || status != "8" {
			t.Errorf("got %s, %v, want 8", status, err)
		}
	})
}

// surfaces are those of database/sql and of what runs on it with every driver.
func surfaces(t *testing.T, c *cell, driver string) {
	c.exec(t, "CREATE TABLE items (id bigint PRIMARY KEY, status varchar(20) NOT NULL)")
	c.testSurface(t, "sql.Conn", func(ctx context.Context, id int64, status string) error {
		conn, err := c.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return c.fence.WithTx(ctx, conn, nil, func(_ context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	c.testSurface(t, "sqlc", func(ctx context.Context, id int64, status string) error {
		return c.fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error {
			return (&queries{tx}).setStatus(ctx, c.q(markPaid), id, status)
		})
	})
	dbx := sqlx.NewDb(c.db, driver)
	c.testSurface(t, "sqlx", func(ctx context.Context, id int64, status string) error {
		tx, err := dbx.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := c.fence.Guard(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.NamedExecContext(ctx, "UPDATE items SET status = :status WHERE id = :id", map[string]any{"id": id, "status": status}); err != nil {
			return err
		}
		return tx.Commit()
	})
	c.testSurface(t, "sqlx WithTx", func(ctx context.Context, id int64, status string) error {
		return c.fence.WithTx(ctx, dbx, nil, func(_ context.Context, tx *sql.Tx) error {
			_, err := (&sqlx.Tx{Tx: tx, Mapper: dbx.Mapper}).ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	entSurface(t, c, driver)
	gormSurfaces(t, c)
	withSurfaces(t, c)
}

// postgresSurfaces are those that exist for PostgreSQL only.
func postgresSurfaces(t *testing.T, c *cell) {
	b := bun.NewDB(c.db, pgdialect.New())
	c.testSurface(t, "bun", func(ctx context.Context, id int64, status string) error {
		return b.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			if err := c.fence.Guard(ctx, tx.Tx); err != nil {
				return err
			}
			_, err := tx.NewUpdate().Table("items").Set("status = ?", status).Where("id = ?", id).Exec(ctx)
			return err
		})
	})
	t.Run("bun.Tx", func(t *testing.T) {
		for name, use := range map[string]func(tx bun.Tx) error{
			"Guard":         func(tx bun.Tx) error { return c.fence.Guard(mark("bun", 1).In(within(t)), tx) },
			"Guard pointer": func(tx bun.Tx) error { return c.fence.Guard(mark("bun", 1).In(within(t)), &tx) },
		} {
			tx, err := b.BeginTx(within(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := use(tx); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "tx.Tx") {
				t.Errorf("%s: got %v, want a refusal that says what to do", name, err)
			}
			if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s: commit after a refusal: got %v, want %v", name, err, sql.ErrTxDone)
			}
		}
	})
	pq, err := sql.Open("postgres", c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, pq)
	c.testSurface(t, "lib/pq", func(ctx context.Context, id int64, status string) error {
		return c.fence.WithTx(ctx, pq, nil, func(_ context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	t.Run("lib/pq repeats", func(t *testing.T) { c.testRepeats(t, pq) })
	failing := failingCommits(t, c)
	testFailedCommit(t, c, failing, "sqlx", func(ctx context.Context, query string) error {
		return commitSqlx(ctx, c.db, c.fence, func(tx *sqlx.Tx) error { _, _ = tx.Exec(query); return nil })
	})
	for name, db := range map[string]*sql.DB{"pgx stdlib": c.db, "lib/pq": pq} {
		testFailedCommit(t, c, failing, name, func(ctx context.Context, query string) error {
			return c.fence.WithTx(ctx, db, nil, func(_ context.Context, tx *sql.Tx) error { _, _ = tx.Exec(query); return nil })
		})
	}
	for _, prepare := range []bool{false, true} {
		g := c.openGorm(t, c.db, gorm.Config{PrepareStmt: prepare})
		testFailedCommit(t, c, failing, fmt.Sprintf("gormfence,prepare=%t", prepare), func(ctx context.Context, query string) error {
			return g.WithContext(ctx).Transaction(func(tx *gorm.DB) error { _ = tx.Exec(query); return nil })
		})
	}
	t.Run("collation", func(t *testing.T) { testCollation(t, c) })
	t.Run("rights", func(t *testing.T) { testRights(t, c) })

	pool, err := pgxpool.New(background, c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c.testSurface(t, "pgx", func(ctx context.Context, id int64, status string) error {
		return pgxfence.WithTx(ctx, c.fence, pool, pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	c.testSurface(t, "pgx with options", func(ctx context.Context, id int64, status string) error {
		return pgxfence.WithTx(ctx, c.fence, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(_ context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, c.q(markPaid), status, id)
			return err
		})
	})
	c.testSurface(t, "pgx guard", func(ctx context.Context, id int64, status string) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := pgxfence.Guard(ctx, c.fence, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, c.q(markPaid), status, id); err != nil {
			return err
		}
		return pgxfence.Commit(ctx, c.fence, tx)
	})
	withPostgresSurfaces(t, c, pool)
	testFailedCommit(t, c, failing, "pgx", func(ctx context.Context, query string) error {
		return pgxfence.WithTx(ctx, c.fence, pool, pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, query); return nil })
	})
	t.Run("pgx nested", func(t *testing.T) {
		conn, err := pgx.Connect(within(t), c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(background)
		for name, db := range map[string]pgxfence.DB{"pool": pool, "connection": conn} {
			ctx := sqlfence.Mark{Resource: "nested", Token: 7}.In(within(t))
			if err := pgxfence.WithTx(ctx, c.fence, db, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { return nil }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			// Guard rolls the savepoint back, which is all that it is given.
			outer, err := db.BeginTx(within(t), pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer outer.Rollback(background)
			inner, err := outer.Begin(within(t))
			if err != nil {
				t.Fatal(err)
			}
			err = pgxfence.Guard(ctx, c.fence, inner)
			if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "savepoint") {
				t.Errorf("%s, Guard: got %v, want a refusal", name, err)
			}
			if _, err := inner.Exec(ctx, "SELECT 1"); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s, Guard: the savepoint: got %v, want %v", name, err, pgx.ErrTxClosed)
			}
			if err := pgxfence.Guard(ctx, c.fence, outer); err != nil {
				t.Errorf("%s, Guard: %v", name, err)
			}
			if err := outer.Rollback(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("search_path", func(t *testing.T) { testSearchPath(t, c) })
	t.Run("pgx rolled back", func(t *testing.T) {
		err := pgxfence.WithTx(sqlfence.Mark{Resource: "pgx", Token: 7}.In(within(t)), c.fence, pool, pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
			return tx.Rollback(background)
		})
		if !errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sqlfence.ErrCommitUnknown) {
			t.Errorf("got %v, want %v", err, pgx.ErrTxClosed)
		}
	})
}

// testCollation asks for the one that an upgrade of the system does not change under the index.
func testCollation(t *testing.T, c *cell) {
	const query = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'sqlfence' AND column_name = 'resource' AND collation_name = 'C'"
	if c.number(t, query) != 1 {
		t.Error("the resource is not compared byte by byte")
	}
}

// testSearchPath shows what the documentation of WithTable warns of, and its way around it.
func testSearchPath(t *testing.T, c *cell) {
	qualified, err := sqlfence.New(c.dialect, sqlfence.WithTable("public.sqlfence"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.db.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, query := range []string{"CREATE SCHEMA app", "SET search_path = app, public", "CREATE TABLE app.sqlfence (LIKE public.sqlfence INCLUDING ALL)"} {
		if _, err := conn.ExecContext(within(t), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	if err := c.fence.Advance(mark("path", 8).In(within(t)), c.db); err != nil {
		t.Fatal(err)
	}
	if err := c.fence.Advance(mark("path", 7).In(within(t)), conn); err != nil {
		t.Errorf("two search paths seem to share a table, the documentation says otherwise: %v", err)
	}
	wantStale(t, qualified.Advance(mark("path", 7).In(within(t)), conn), sqlfence.StaleError{Resource: "path", Token: 7, Current: 8})
	if _, err := conn.ExecContext(within(t), "RESET search_path"); err != nil {
		t.Error(err)
	}
}

// testRights runs the DDL as a user that may not create tables, which is how replicas should run.
func testRights(t *testing.T, c *cell) {
	conn, err := c.db.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, query := range []string{
		"CREATE ROLE replica", "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "GRANT SELECT, INSERT, UPDATE ON sqlfence TO replica",
		"SET ROLE replica", c.fence.DDL(),
	} {
		if _, err := conn.ExecContext(within(t), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	if err := c.fence.Advance(mark("rights", 7).In(within(t)), conn); err != nil {
		t.Error(err)
	}
	_, err = conn.ExecContext(within(t), "RESET ROLE")
	if err != nil {
		t.Error(err)
	}
}

// testRepeats meets a row that is locked, at the first attempt. It would rather not wait, so WithTx does not; unless it is told to.
func (c *cell) testRepeats(t *testing.T, db *sql.DB) {
	id := databases.Add(1)
	c.exec(t, "INSERT INTO items (id, status) VALUES (?, 'new')", id)
	other := c.begin(t)
	query := c.q("SELECT status FROM items WHERE id = ? FOR UPDATE NOWAIT")
	if _, err := other.Exec(query, id); err != nil {
		t.Fatal(err)
	}
	locked := func(err error) bool {
		var pg interface{ SQLState() string }
		var maria *mysql.MySQLError
		return errors.As(err, &pg) && pg.SQLState() == "55P03" || errors.As(err, &maria) && maria.Number == 1205
	}
	again, err := sqlfence.New(c.dialect, sqlfence.WithRetries(10, locked))
	if err != nil {
		t.Fatal(err)
	}
	for _, fence := range []*sqlfence.Fence{c.fence, again} {
		runs := 0
		err := fence.WithTx(sqlfence.Mark{Resource: "repeats", Token: 7}.In(within(t)), db, nil, func(_ context.Context, tx *sql.Tx) error {
			runs++
			var status string
			err := tx.QueryRow(query, id).Scan(&status)
			if err != nil && fence == again {
				_ = other.Rollback()
			}
			return err
		})
		if fence == again && (err != nil || runs != 2) || fence == c.fence && (!locked(err) || runs != 1) {
			t.Errorf("told to: %v; got %v after %d runs", fence == again, err, runs)
		}
	}
}

// failingCommits are statements after which PostgreSQL answers COMMIT with an error, or with a rollback where it was
// ignored.
func failingCommits(t *testing.T, c *cell) map[string]string {
	c.exec(t, "CREATE TABLE parts (item bigint REFERENCES items (id) DEFERRABLE INITIALLY DEFERRED)")
	c.exec(t, "CREATE TABLE checked (how text)")
	c.exec(t, `CREATE FUNCTION check_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.how = 'terminated' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
		RAISE EXCEPTION USING MESSAGE = 'not like this', ERRCODE = NEW.how;
	END $$`)
	c.exec(t, "CREATE CONSTRAINT TRIGGER check_it AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_it()")
	return map[string]string{
		"ignored":  "SELECT 1/0",
		"deferred": "INSERT INTO parts VALUES (-1)",
		"raised":   "INSERT INTO checked VALUES ('P0001')",
		"disk":     "INSERT INTO checked VALUES ('53100')", // which can also be that of a PANIC
		// These are no certain no, though here nothing was committed.
		"08006":      "INSERT INTO checked VALUES ('08006')",
		"40003":      "INSERT INTO checked VALUES ('40003')",
		"terminated": "INSERT INTO checked VALUES ('terminated')",
	}
}

// testFailedCommit has COMMIT refused. run runs a statement in a guarded transaction and ignores its error.
func testFailedCommit(t *testing.T, c *cell, queries map[string]string, name string, run func(ctx context.Context, query string) error) {
	for what, query := range queries {
		t.Run(name+" failed commit,"+what, func(t *testing.T) {
			resource := "failed:" + name + what
			err := run(sqlfence.Mark{Resource: resource, Token: 7}.In(within(t)), query)
			unknown := what == "08006" || what == "40003" || what == "terminated"
			if err == nil || errors.Is(err, sqlfence.ErrCommitUnknown) != unknown {
				t.Errorf("got %v, want it unknown: %t", err, unknown)
			}
			if got, err := c.fence.Current(within(t), c.db, resource); got != 0 || err != nil {
				t.Errorf("the database has token %d, %v, want nothing committed", got, err)
			}
		})
	}
}

func TestWhatIsNoTransactionDoesNotCompile(t *testing.T) {
	t.Parallel()
	const file = "testdata/refused/refused.go"
	src, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	out, err := exec.Command("go", "build", "./testdata/refused").CombinedOutput()
	if err == nil {
		t.Fatal("it does")
	}
	line, wanted := 0, 0
	for lines := bufio.NewScanner(src); lines.Scan(); {
		line++
		_, why, ok := strings.Cut(lines.Text(), "// want")
		if !ok {
			continue
		}
		if why != "" {
			wanted++
		}
		if at := fmt.Sprintf("%s:%d:", file, line); !strings.Contains(string(out), at) {
			t.Errorf("this compiles: %s\n%.600s", strings.TrimSpace(lines.Text()), out)
		}
	}
	if got := strings.Count(string(out), "missing method Commit"); got != wanted || wanted == 0 {
		t.Errorf("got %d refusals for want of Commit, want %d:\n%.2000s", got, wanted, out)
	}
}
