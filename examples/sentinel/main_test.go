package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestFailoverKeepsTheLock(t *testing.T) {
	servertest.Redis(t) // the test goes on where the program finds a server
	t.Setenv("SENTINEL_ADDRS", "")
	t.Setenv("SENTINEL_MASTER", "")
	out := exampletest.Start(t, withOwnServers(run)).Wait()
	at := 0
	for _, line := range []string{"held, token ", "the replica is the master\n", "released\n"} { // released on the new master: without the lock there it would be an error
		i := strings.Index(out[at:], line)
		if i < 0 {
			t.Fatalf("no %q, in this order, in\n%s", line, out)
		}
		at += i
	}
}

func TestSentinelOfYours(t *testing.T) {
	master := servertest.Redis(t)
	servertest.Replica(t, master)
	sentinel := servertest.Sentinel(t, "mymaster", master)
	t.Setenv("SENTINEL_ADDRS", sentinel.Addr())
	t.Setenv("SENTINEL_MASTER", "mymaster")
	program := exampletest.Start(t, run)
	program.Await(1, "held, token ")
	program.Stop()
	program.Await(1, "released")
	if n := master.Client().Exists(t.Context(), "report").Val(); n != 0 {
		t.Error("the lock is still there")
	}
}
