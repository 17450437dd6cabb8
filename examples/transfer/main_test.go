package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

const want = "60 transfers, and the accounts have 300 together\n"

func TestTransfersInAnyDirection(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	if got := exampletest.Start(t, run).Wait(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	exampletest.Redis(t)
	if got := exampletest.Start(t, run).Wait(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
