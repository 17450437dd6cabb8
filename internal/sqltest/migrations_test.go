package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// migrations are the files for tools that migrate a database: a folder for each tool, and in it one for each dialect.
var migrations = os.DirFS(filepath.Join("..", "..", "sqlfence", "migrations"))

// A migrator goes all the way up or down, with the files of a folder.
type migrator struct{ up, down func() error }

// migrators make one for an empty database, by the name of the tool's folder. A tool that cannot be had here is left out.
var migrators = map[string]func(t *testing.T, d sqlfence.Dialect, db *sql.DB, files fs.FS) migrator{}

// migratorTests are those of one tool, in the file of that tool.
var migratorTests = map[string]func(t *testing.T, c *cell){}

// testMigrations applies the files as the tools do. What they make must be what DDL makes, and going down must not forget tokens.
func testMigrations(t *testing.T, c *cell) {
	if len(migrators) == 0 {
		t.Skip("left out: the tools")
	}
	for name, test := range migratorTests {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	byDDL := c.sibling(t)
	byDDL.exec(t, c.fence.DDL())
	for tool, start := range migrators {
		t.Run(tool, func(t *testing.T) {
			files, err := fs.Sub(migrations, path.Join(tool, strings.ToLower(c.dialect.String())))
			if err != nil {
				t.Fatal(err)
			}
			other := c.sibling(t)
			m := start(t, c.dialect, other.db, files)
			must(t, "up", m.up())
			if got, want := other.catalogue(t), byDDL.catalogue(t); got != want {
				t.Errorf("the files make\n%s\nand DDL\n%s", got, want)
			}
			other.exec(t, c.fence.DDL()) // may come on top
			if err := other.fence.Advance(mark("r", 7).In(within(t)), other.db); err != nil {
				t.Fatal(err)
			}
			must(t, "down", m.down())
			wantStale(t, other.guarded(within(t), "r", 6, nothing), sqlfence.StaleError{Resource: "r", Token: 6, Current: 7})
			must(t, "up again", m.up())
			wantStale(t, other.guarded(within(t), "r", 6, nothing), sqlfence.StaleError{Resource: "r", Token: 6, Current: 7})
			if err := other.guarded(within(t), "r", 8, nothing); err != nil {
				t.Error(err)
			}
		})
		if c.dialect != sqlfence.SQLite {
			t.Run(tool+" elsewhere", func(t *testing.T) { testMigrationElsewhere(t, c, tool) })
		}
	}
}

// testMigrationElsewhere changes a file as README.md says, for a table in a schema of its own, which is a database to MySQL.
func testMigrationElsewhere(t *testing.T, c *cell, tool string) {
	files := fstest.MapFS{}
	folder := path.Join(tool, strings.ToLower(c.dialect.String()))
	names, err := fs.Glob(migrations, folder+"/*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("got files %q, %v", names, err)
	}
	other := c.sibling(t)
	schema := fmt.Sprintf("app%d", databases.Add(1))
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.ReplaceAll(string(text), "EXISTS sqlfence (", "EXISTS "+schema+".sqlfence (")
		files[path.Base(name)] = &fstest.MapFile{Data: []byte(changed)}
	}
	other.exec(t, "CREATE SCHEMA "+schema)
	must(t, "up", migrators[tool](t, c.dialect, other.db, files).up())
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable(schema+".sqlfence"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Advance(mark("r", 7).In(within(t)), other.db); err != nil {
		t.Error(err)
	}
	wantStale(t, f.Advance(mark("r", 6).In(within(t)), other.db), sqlfence.StaleError{Resource: "r", Token: 6, Current: 7})
	if err := other.fence.Advance(mark("r", 7).In(within(t)), other.db); err == nil || !strings.Contains(err.Error(), "there is no table") {
		t.Errorf("in the usual place: got %v, want no table", err)
	}
}

func must(t *testing.T, act string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", act, err)
	}
}

// sibling is an empty database beside that of the cell, on the same server.
func (c *cell) sibling(t *testing.T) *cell {
	t.Helper()
	other := *c
	var err error
	switch c.dialect {
	case sqlfence.Postgres:
		u, bad := url.Parse(c.dsn)
		if bad != nil {
			t.Fatal(bad)
		}
		u.Path = "/" + create(t, c.db)
		other.dsn = u.String()
		other.db, err = sql.Open("pgx", other.dsn)
	case sqlfence.MySQL:
		cfg, bad := mysql.ParseDSN(c.dsn)
		if bad != nil {
			t.Fatal(bad)
		}
		cfg.DBName = create(t, c.db)
		other.dsn = cfg.FormatDSN()
		other.db, err = sql.Open("mysql", other.dsn)
	default:
		other.dsn = "file:" + filepath.Join(t.TempDir(), "sibling") + "?_txlock=immediate&_pragma=busy_timeout(5000)"
		other.db, err = sql.Open("sqlite", other.dsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	closing(t, other.db)
	return &other
}

// catalogue is all that the database says of the table sqlfence.
func (c *cell) catalogue(t *testing.T) string {
	t.Helper()
	switch c.dialect {
	case sqlfence.Postgres:
		return c.text(t, `SELECT attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation, atthasdef
			FROM pg_attribute WHERE attrelid = 'sqlfence'::regclass AND attnum > 0 ORDER BY attnum`) +
			c.text(t, `SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'sqlfence'::regclass ORDER BY conname`) +
			c.text(t, `SELECT indexdef FROM pg_indexes WHERE tablename = 'sqlfence'`) +
			c.text(t, `SELECT relkind, relpersistence, reloptions FROM pg_class WHERE oid = 'sqlfence'::regclass`)
	case sqlfence.MySQL:
		return c.text(t, "SHOW CREATE TABLE sqlfence")
	}
	// SQLite keeps the statement itself, but for IF NOT EXISTS.
	return strings.ReplaceAll(c.text(t, "SELECT sql FROM sqlite_master WHERE tbl_name = 'sqlfence'"), "`", "") +
		c.text(t, "PRAGMA table_xinfo(sqlfence)") + c.text(t, "SELECT type, ncol, wr, strict FROM pragma_table_list('sqlfence')")
}

// text is what a query returns.
func (c *cell) text(t *testing.T, query string) string {
	t.Helper()
	rows, err := c.db.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for rows.Next() {
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			fmt.Fprintf(&all, "%s | ", v.String)
		}
		all.WriteByte('\n')
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || all.Len() == 0 {
		t.Fatalf("%s: got %q, %v", query, all.String(), err)
	}
	return all.String()
}
