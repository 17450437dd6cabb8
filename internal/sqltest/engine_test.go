package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

var background = context.Background()

// cell is an engine at one isolation level and with one set of settings, and an empty database there.
type cell struct {
	name    string
	dialect sqlfence.Dialect
	opts    *sql.TxOptions
	// connect opens another pool to the database. Its connections break now and then if dial is not nil.
	connect func(t testing.TB, dial dialer) *sql.DB
	dsn     string // of the database, in the form of its driver
	// blindSelect says that a SELECT neither locks nor makes a later write fail. Elsewhere one in front of a
	// transaction is a check that holds, if only by serialization failures or BUSY.
	blindSelect bool

	db    *sql.DB
	fence *sqlfence.Fence
}

// fragile is what PostgreSQL calls the sessions on connections that may break.
const fragile = "fragile"

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// q writes the placeholders of the dialect.
func (c *cell) q(query string) string {
	if c.dialect != sqlfence.Postgres {
		return query
	}
	var b strings.Builder
	n := 0
	for _, r := range query {
		if r == '?' {
			n++
			fmt.Fprintf(&b, "$%d", n)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (c *cell) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := c.db.Exec(c.q(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (c *cell) number(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	if err := c.db.QueryRow(c.q(query), args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (c *cell) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := c.db.BeginTx(background, c.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// with runs fn in the cell.
func (c cell) with(t *testing.T, fn func(t *testing.T, c *cell)) {
	t.Run(c.name, func(t *testing.T) {
		c.open(t)
		fn(t, &c)
	})
}

func (c *cell) open(t testing.TB) {
	f, err := sqlfence.New(c.dialect)
	if err != nil {
		t.Fatal(err)
	}
	c.fence = f
	c.db = c.connect(t, nil)
	c.exec(t, f.DDL())
}

func closing(t testing.TB, db *sql.DB) *sql.DB {
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// databases are the names given out by this process.
var databases atomic.Int64

// create makes a database on a server whose own is open as db.
func create(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := fmt.Sprintf("cell%d", databases.Add(1))
	if _, err := db.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return name
}

func levelName(l sql.IsolationLevel) string {
	return strings.ReplaceAll(strings.ToLower(l.String()), " ", "-")
}

func postgresCells(t testing.TB) (cells []cell) {
	server := servertest.Postgres(t)
	admin, err := sql.Open("pgx", server)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, admin)
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		dsn := strings.Replace(server, "/postgres?", "/"+create(t, admin)+"?", 1)
		cells = append(cells, cell{
			name: levelName(level), dialect: sqlfence.Postgres, opts: &sql.TxOptions{Isolation: level}, dsn: dsn,
			blindSelect: level == sql.LevelReadCommitted,
			connect: func(t testing.TB, dial dialer) *sql.DB {
				cfg, err := pgx.ParseConfig(dsn)
				if err != nil {
					t.Fatal(err)
				}
				if dial != nil {
					cfg.DialFunc = pgxDial(dial)
					cfg.RuntimeParams["application_name"] = fragile
				}
				return closing(t, stdlib.OpenDB(*cfg))
			},
		})
	}
	return cells
}

func pgxDial(d dialer) func(ctx context.Context, network, addr string) (net.Conn, error) { return d }

func mariaCells(t testing.TB) (cells []cell) {
	u, err := url.Parse(servertest.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	open := func(t testing.TB, name string, dial dialer, edit func(*mysql.Config)) *sql.DB {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "tcp", u.Host, name
		cfg.Logger = &mysql.NopLogger{} // of broken connections, which are meant to break
		if edit != nil {
			edit(cfg)
		}
		if dial != nil {
			cfg.DialFunc = dial
		}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return closing(t, sql.OpenDB(connector))
	}
	admin := open(t, "test", nil, nil)
	for _, level := range []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, found := range []bool{false, true} {
			for _, snapshot := range []string{"0", "1"} {
				if found && level != sql.LevelRepeatableRead && os.Getenv("HOLDFAST_SOAK") == "" {
					continue // what a driver counts as affected plays no part, and is looked at with the default level alone
				}
				name := create(t, admin)
				edit := func(cfg *mysql.Config) {
					cfg.ClientFoundRows = found
					cfg.Params = map[string]string{"innodb_snapshot_isolation": snapshot, "innodb_lock_wait_timeout": "5"}
				}
				cells = append(cells, cell{
					name: fmt.Sprintf("%s,found=%t,snapshot=%s", levelName(level), found, snapshot), dialect: sqlfence.MySQL,
					opts: &sql.TxOptions{Isolation: level}, dsn: "root@tcp(" + u.Host + ")/" + name + "?parseTime=true",
					blindSelect: level < sql.LevelRepeatableRead || level == sql.LevelRepeatableRead && snapshot == "0",
					connect:     func(t testing.TB, dial dialer) *sql.DB { return open(t, name, dial, edit) },
				})
			}
		}
	}
	return cells
}

func sqliteCells(t testing.TB) (cells []cell) {
	dir := t.TempDir()
	for _, journal := range []string{"wal", "delete"} {
		for _, lock := range []string{"deferred", "immediate"} {
			dsn := "file:" + filepath.Join(dir, journal+lock) + "?" + url.Values{
				"_pragma": {"busy_timeout(5000)", "journal_mode(" + journal + ")", "synchronous(off)"},
				"_txlock": {lock},
			}.Encode()
			cells = append(cells, cell{
				name: journal + "," + lock, dialect: sqlfence.SQLite, dsn: dsn,
				connect: func(t testing.TB, _ dialer) *sql.DB {
					db, err := sql.Open("sqlite", dsn)
					if err != nil {
						t.Fatal(err)
					}
					return closing(t, db)
				},
			})
		}
	}
	return cells
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	cells := postgresCells(t)
	for _, c := range cells {
		c.with(t, suite)
	}
	c := cells[0]
	c.name = "surfaces"
	c.with(t, func(t *testing.T, c *cell) {
		surfaces(t, c, "pgx")
		t.Run("repeats", func(t *testing.T) { c.testRepeats(t, c.db) })
		t.Run("PausedReplica", func(t *testing.T) { testPausedReplica(t, c, "pgx") })
		t.Run("Killed", func(t *testing.T) { testKilled(t, c, "pgx") })
		postgresSurfaces(t, c)
		postgresCommits(t, c)
		t.Run("Tables", func(t *testing.T) { testTables(t, c) })
		t.Run("Migrations", func(t *testing.T) { testMigrations(t, c) })
		testModes(t, c, "pgx", "default_query_exec_mode=simple_protocol", "default_query_exec_mode=exec", "default_query_exec_mode=cache_describe")
		testModes(t, c, "postgres", "binary_parameters=yes", "binary_parameters=no")
		t.Run("Deadlock", func(t *testing.T) { testDeadlock(t, c) })
		t.Run("Idle", func(t *testing.T) { testIdle(t, c) })
		t.Run("Hangs", func(t *testing.T) { testHangs(t, c) })
		t.Run("OtherTable", func(t *testing.T) { testOtherTable(t, c) })
		testBounds(t, c, "SET LOCAL idle_in_transaction_session_timeout = '200ms'", "SET lock_timeout = '200ms'")
	})
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	cells := mariaCells(t)
	for _, c := range cells {
		c.with(t, suite)
	}
	c := cells[slices.IndexFunc(cells, func(c cell) bool { return c.opts.Isolation == sql.LevelRepeatableRead })]
	c.name = "surfaces"
	c.with(t, func(t *testing.T, c *cell) {
		surfaces(t, c, "mysql")
		t.Run("repeats", func(t *testing.T) { c.testRepeats(t, c.db) })
		t.Run("PausedReplica", func(t *testing.T) { testPausedReplica(t, c, "mysql") })
		t.Run("Killed", func(t *testing.T) { testKilled(t, c, "mysql") })
		t.Run("Deadlock", func(t *testing.T) { testDeadlock(t, c) })
		t.Run("GuardGone", func(t *testing.T) { testGuardGone(t, c) })
		t.Run("PruneWaits", func(t *testing.T) { testPruneWaits(t, c) })
		t.Run("Tables", func(t *testing.T) { testTables(t, c) })
		t.Run("Migrations", func(t *testing.T) { testMigrations(t, c) })
		testModes(t, c, "mysql", "interpolateParams=true", "charset=latin1", "charset=utf8&interpolateParams=true", "sql_mode=%27%27", "autocommit=0",
			"interpolateParams=true&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27", "sql_mode=%27ORACLE%27", "character_set_connection=latin1")
		testBounds(t, c, "SET idle_write_transaction_timeout = 1", "SET innodb_lock_wait_timeout = 1")
	})
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	cells := sqliteCells(t)
	for _, c := range cells {
		c.with(t, func(t *testing.T, c *cell) {
			suite(t, c)
			t.Run("Killed", func(t *testing.T) { testKilled(t, c, "sqlite") })
		})
	}
	c := cells[1] // WAL, immediate
	c.name = "surfaces"
	c.with(t, func(t *testing.T, c *cell) {
		surfaces(t, c, "sqlite")
		t.Run("PausedReplica", func(t *testing.T) { testPausedReplica(t, c, "sqlite") })
		t.Run("Tasks", func(t *testing.T) { testTasks(t, c) })
		t.Run("Tables", func(t *testing.T) { testTables(t, c) })
		t.Run("Migrations", func(t *testing.T) { testMigrations(t, c) })
		testBounds(t, c, "", "PRAGMA busy_timeout = 1100")
	})
}

// suite is what holds on each engine and level.
func suite(t *testing.T, c *cell) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, c *cell)
	}{
		{"OlderIsRefused", testOlderIsRefused},
		{"Ahead", testAhead},
		{"NewerWaits", testNewerWaits},
		{"RollbackRestores", testRollbackRestores},
		{"AdvanceCloses", testAdvanceCloses},
		{"Parallel", testParallel},
		{"NewerGetsThrough", testNewerGetsThrough},
		{"ReadsWhatItWaitedFor", testReadsWhatItWaitedFor},
		{"Traces", testTraces},
		{"PrunedRowIsNew", testPrunedRowIsNew},
		{"NothingIsLost", testNothingIsLost},
		{"Resources", testResources},
		{"Prune", testPrune},
		{"ConcurrentDDL", testConcurrentDDL},
		{"Advice", testAdvice},
		{"Rows", testRows},
		{"RowStays", testRowStays},
		{"Tombstone", testTombstone},
		{"ReadBeforeGuard", testReadBeforeGuard},
		{"BrokenCommit", testBrokenCommit},
		{"History", testHistory},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, c) }) {
			return // what comes after it fails for the same reason
		}
	}
}

// within is patience for what should happen soon.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
