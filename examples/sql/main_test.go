package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

const want = "the late message was refused: its token is stale\norder 42 is paid\n"

func TestLateWriteIsRefused(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	for name, start := range map[string]func(testing.TB) string{
		"embedded": func(testing.TB) string { return "" },
		"SQLite": func(t testing.TB) string {
			return "sqlite://" + filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db"))
		},
		"PostgreSQL": servertest.Postgres,
		"MariaDB":    servertest.MariaDB,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DATABASE_URL", start(t))
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			// Twice, as what the first leaves behind would be in the way of the second.
			for range 2 {
				if got := exampletest.Start(t, run).Wait(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("got %v, %v in the directory for temporary files, want nothing", left, err)
			}
		})
	}
}
