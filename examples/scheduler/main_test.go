package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func TestReplicasEnqueueATickOnce(t *testing.T) {
	exampletest.Redis(t)
	program := exampletest.Start(t, exampletest.Replicas(3, run))
	program.Await(2, "heartbeat of ")
	program.Stop()

	seen := map[string]bool{}
	for _, line := range program.Await(2, "heartbeat of ") {
		if seen[line] {
			t.Errorf("%q twice", line)
		}
		seen[line] = true
	}
}

func TestEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	program := exampletest.Start(t, run)
	program.Await(1, "heartbeat of ")
	program.Stop()
}
