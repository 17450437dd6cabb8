package main

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

const want = "5 of 8 withdrew 10, 0 left\nthe paused holder was refused: its token is stale\n"

func TestWithdrawalsAreFenced(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	for name, start := range map[string]func(testing.TB) string{
		"embedded":   func(testing.TB) string { return "" },
		"PostgreSQL": servertest.Postgres,
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
