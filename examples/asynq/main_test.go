package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

var begin = regexp.MustCompile(`^begin (account:\d+): (.*), token (\d+)$`)

func TestPayoutsOfAnAccountRunOneAtATime(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	program := exampletest.Start(t, run)
	program.Await(6, "end ")
	program.Stop()

	running, last, paid := map[string]string{}, map[string]string{}, map[string]int{}
	for line := range strings.Lines(program.Output()) {
		line = strings.TrimSuffix(line, "\n")
		if m := begin.FindStringSubmatch(line); m != nil {
			account, amount, token := m[1], m[2], m[3]
			if running[account] != "" {
				t.Errorf("%q while %s is paid", line, running[account])
			}
			if token <= last[account] { // of 16 digits each
				t.Errorf("%q after token %s", line, last[account])
			}
			running[account], last[account] = amount, token
			paid[account]++
		} else if rest, ok := strings.CutPrefix(line, "end   "); ok {
			account, _, _ := strings.Cut(rest, ": ")
			running[account] = ""
		}
	}
	if paid["account:0"] != 3 || paid["account:1"] != 3 {
		t.Errorf("got payouts %v, want three of each account", paid)
	}
	if t.Failed() {
		t.Log(program.Output())
	}
}
