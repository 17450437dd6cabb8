package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func TestReplicasRunATickOnce(t *testing.T) {
	exampletest.Redis(t)
	program := exampletest.Start(t, exampletest.Replicas(3, run))
	program.Await(2, "invoices of ")
	program.Stop()

	seen := map[string]bool{}
	for _, line := range program.Await(2, "invoices of ") {
		tick, token, _ := strings.Cut(line, ", token ")
		if seen[tick] {
			t.Errorf("%s ran twice", tick)
		}
		seen[tick] = true
		if len(token) != 16 {
			t.Errorf("got token %q in %q", token, line)
		}
	}
}

func TestEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	program := exampletest.Start(t, run)
	program.Await(1, "invoices of ")
	program.Stop()
}
