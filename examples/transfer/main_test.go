package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

const want = "the late transfer was refused; anna has 8000 cents, ben has 12000\n"

func TestTransfers(t *testing.T) {
	for _, name := range []string{"embedded", "Redis"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REDIS_ADDR", "")
			if name == "Redis" {
				exampletest.Redis(t)
			}
			if got := exampletest.Start(t, run).Wait(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
