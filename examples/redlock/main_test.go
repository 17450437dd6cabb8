package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestTwoOfFiveMastersMayBeGone(t *testing.T) {
	t.Setenv("REDIS_ADDRS", "") // the embedded ones
	t.Setenv("HOLDFAST_QUARANTINE", "")
	want := regexp.MustCompile(`^5 masters, quarantine 0s
held, token \d+
1 of 5 masters are gone
held, token \d+
2 of 5 masters are gone
held, token \d+
3 of 5 masters are gone
no majority
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
	t.Setenv("HOLDFAST_QUARANTINE", "0s") // they are new
	program := exampletest.Start(t, run)
	program.Await(1, "held, token ")
	masters[0].Kill()
	masters[1].Kill()
	n := len(program.Await(1, "held, token "))
	program.Await(n+2, "held, token ") // the first of them may have begun before
	program.Stop()
}

func TestOutcomes(t *testing.T) {
	young := &holdfast.QuarantineError{Nodes: []string{"a:6379"}, Until: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for want, err := range map[string]error{
		"no lock before 03:04:05: [a:6379] have just started": fmt.Errorf("%w: %w", holdfast.ErrUnavailable, young),
		"no majority":              holdfast.ErrUnavailable,
		"held elsewhere":           &holdfast.HeldError{Key: "report:daily"},
		"held and lost":            fmt.Errorf("hold: %w", holdfast.ErrLost),
		holdfast.ErrClosed.Error(): holdfast.ErrClosed,
	} {
		if got := outcome(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
