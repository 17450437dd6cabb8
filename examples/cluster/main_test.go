package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestLocksAreOnAllNodes(t *testing.T) {
	servertest.Redis(t) // the test goes on where the program finds a server
	t.Setenv("REDIS_ADDRS", "")
	out := exampletest.Start(t, withOwnServers(run)).Wait()
	nodes := map[string]bool{}
	for line := range strings.Lines(out) {
		if _, node, ok := strings.Cut(line, " is held on "); ok {
			nodes[node] = true
		}
	}
	if len(nodes) != 3 || !strings.HasSuffix(out, "the cart and its lock are in one slot: true\n") {
		t.Errorf("want locks on three nodes, and a cart, got\n%s", out)
	}
}
