package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestTwoOfFiveMastersMayBeGone(t *testing.T) {
	t.Setenv("REDIS_ADDRS", "") // the embedded ones
	want := regexp.MustCompile(`^held, token \d+
4 masters are left
held, token \d+
3 masters are left
held, token \d+
2 masters are left
no lock: .* no majority: .*
$`)
	if got := exampletest.Start(t, run).Wait(); !want.MatchString(got) {
		t.Errorf("got\n%s", got)
	}
}

func TestRealMasters(t *testing.T) {
	var masters []*servertest.Server
	var addrs []string
	for range 5 {
		master := servertest.Redis(t)
		masters, addrs = append(masters, master), append(addrs, master.Addr())
	}
	t.Setenv("REDIS_ADDRS", strings.Join(addrs, ","))
	defer func(d time.Duration) { quarantine = d }(quarantine)
	quarantine = 0 // they are new
	program := exampletest.Start(t, run)
	program.Await(1, "held, token ")
	masters[0].Kill()
	masters[1].Kill()
	n := len(program.Await(1, "held, token "))
	program.Await(n+2, "held, token ") // the first of them may have begun before
	program.Stop()
}
