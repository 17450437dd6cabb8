package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

const want = "the balance is 40\na late write was refused\na late write was refused\n"

func TestLateWritesAreRefused(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	if got := exampletest.Start(t, run).Wait(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
