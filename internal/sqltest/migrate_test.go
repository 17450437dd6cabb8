//go:build !without_migrate

package sqltest

import (
	"database/sql"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func init() {
	migrators["migrate"] = newMigrate
	migratorTests["migrate DDL"] = testMigrateDDL
}

func newMigrate(t *testing.T, d sqlfence.Dialect, db *sql.DB, files fs.FS) migrator {
	t.Helper()
	source, err := iofs.New(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	var driver database.Driver
	switch d {
	case sqlfence.Postgres:
		driver, err = migratepgx.WithInstance(db, &migratepgx.Config{})
	case sqlfence.MySQL:
		driver, err = migratemysql.WithInstance(db, &migratemysql.Config{})
	default:
		driver, err = migratesqlite.WithInstance(db, &migratesqlite.Config{})
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, d.String(), driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close()); err != nil {
			t.Error(err)
		}
	})
	return migrator{m.Up, m.Down}
}

// testMigrateDDL has DDL itself in a migration: it is sent as a whole. With x-multi-statement it is split.
func testMigrateDDL(t *testing.T, c *cell) {
	files := fstest.MapFS{"000001_sqlfence.up.sql": {Data: []byte(c.fence.DDL() + ";\n")}}
	if c.dialect == sqlfence.Postgres {
		driver, err := migratepgx.WithInstance(c.sibling(t).db, &migratepgx.Config{MultiStatementEnabled: true, MultiStatementMaxSize: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if err := driver.Run(strings.NewReader(c.fence.DDL() + ";\n")); err == nil {
			t.Error("a split DO block runs")
		}
		must(t, "close", driver.Close())
	}
	other := c.sibling(t)
	must(t, "up", newMigrate(t, c.dialect, other.db, files).up())
	if err := other.fence.Advance(mark("r", 7).In(within(t)), other.db); err != nil {
		t.Error(err)
	}
}
