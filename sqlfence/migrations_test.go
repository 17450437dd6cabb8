package sqlfence

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMigrationsAreDDL compares the text of the files with DDL. That they make the same table is tested in internal/sqltest.
func TestMigrationsAreDDL(t *testing.T) {
	read := func(name ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{"migrations"}, name...)...))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	const down = "-- The table stays: a database that forgets its tokens lets a holder that was paused meanwhile write. See README.md.\nSELECT 1;\n"
	paper := read("README.md")
	for _, d := range []Dialect{Postgres, MySQL, SQLite} {
		f, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("`sqlfence`", "sqlfence", `"sqlfence"`, "sqlfence").Replace(f.DDL()) + ";\n"
		if d == Postgres { // the statement in the DO block, by itself
			want = regexp.MustCompile(`(?s)CREATE TABLE.*?;\n`).FindString(want)
			want = strings.ReplaceAll(want, "\n    ", "\n")
		}
		folder := strings.ToLower(d.String())
		if got := read("migrate", folder, "000001_sqlfence.up.sql"); got != want {
			t.Errorf("%v, golang-migrate: got\n%s\nwant\n%s", d, got, want)
		}
		if got := read("migrate", folder, "000001_sqlfence.down.sql"); got != down {
			t.Errorf("%v, golang-migrate, down: got\n%s\nwant\n%s", d, got, down)
		}
		if got := read("goose", folder, "00001_sqlfence.sql"); got != "-- +goose Up\n"+want+"\n-- +goose Down\n"+down {
			t.Errorf("%v, goose: got\n%s\nwant\n%s and\n%s", d, got, want, down)
		}
		if !strings.Contains(paper, "```sql\n"+want+"```") {
			t.Errorf("%v: README.md lacks\n%s", d, want)
		}
	}
}
