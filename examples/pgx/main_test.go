package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestInvoicesHaveNoGaps(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	t.Setenv("DATABASE_URL", servertest.Postgres(t))
	want := ""
	for n := 1; n <= 10; n++ {
		want += fmt.Sprintln("invoice", n)
	}
	want += "the late invoice was refused\n"
	// Twice, as what the first leaves behind would be in the way of the second.
	for range 2 {
		if got := exampletest.Start(t, run).Wait(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

func TestWithoutDatabaseSaysWhatIsMissing(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	if err := exampletest.Start(t, run).Err(); err == nil || !strings.Contains(err.Error(), "set DATABASE_URL") {
		t.Errorf("got %v", err)
	}
}
