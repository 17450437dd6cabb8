package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

const want = "the late write was refused, and order 42 is paid\n"

func TestLateWriteIsRefused(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	for name, start := range map[string]func(testing.TB) string{
		"embedded":   func(testing.TB) string { return "" },
		"PostgreSQL": servertest.Postgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DATABASE_URL", start(t))
			// Twice, as what the first leaves behind would be in the way of the second.
			for range 2 {
				if got := exampletest.Start(t, run).Wait(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}
