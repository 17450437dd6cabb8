//go:build !without_goose

package sqltest

import (
	"database/sql"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/pressly/goose/v3"
)

func init() {
	migrators["goose"] = newGoose
	migratorTests["goose DDL"] = testGooseDDL
}

var gooseDialects = map[sqlfence.Dialect]goose.Dialect{
	sqlfence.Postgres: goose.DialectPostgres,
	sqlfence.MySQL:    goose.DialectMySQL,
	sqlfence.SQLite:   goose.DialectSQLite3,
}

func newGoose(t *testing.T, d sqlfence.Dialect, db *sql.DB, files fs.FS) migrator {
	t.Helper()
	p, err := goose.NewProvider(gooseDialects[d], db, files)
	if err != nil {
		t.Fatal(err)
	}
	return migrator{
		up:   func() error { _, err := p.Up(background); return err },
		down: func() error { _, err := p.DownTo(background, 0); return err },
	}
}

// testGooseDDL has DDL itself in a migration. PostgreSQL's has semicolons inside, of which goose has to be told.
func testGooseDDL(t *testing.T, c *cell) {
	for _, told := range []bool{true, false} {
		text := c.fence.DDL() + ";\n"
		if told {
			text = "-- +goose StatementBegin\n" + text + "-- +goose StatementEnd\n"
		}
		files := fstest.MapFS{"00001_sqlfence.sql": {Data: []byte("-- +goose Up\n" + text)}}
		err := newGoose(t, c.dialect, c.sibling(t).db, files).up()
		if works := told || !strings.Contains(c.fence.DDL(), ";"); works != (err == nil) {
			t.Errorf("told of it: %t: got %v", told, err)
		}
	}
}
