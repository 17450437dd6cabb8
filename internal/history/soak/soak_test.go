//go:build unix

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/testlimit"
)

// What the parts print today is what is counted: a part that counts nothing would look idle for ever.
func TestCounts(t *testing.T) {
	samples := map[string]string{
		"simulation":         "    helper_simulation_test.go:37: 400 seeds from 40",
		"redlock-simulation": "    helper_simulation_test.go:37: 120 seeds from 1",
		"redlock-storm":      "    redlock_storm_server_test.go:282: 812 holds, 3 of them lost, 4 calls failed; faults map[]",
		"tick-scripts":       "    helper_simulation_test.go:37: 13 seeds from 0",
		"fence-script":       "    helper_simulation_test.go:37: 14 seeds from 0",
		"model":              "    model_test.go:175: 20000 walks through each of everything, up to seed 9",
		"schedule":           "    schedule_test.go:56: 6000 schedules from seed 1 in 2.338s, 1242816 calls",
		"asynqlock":          "    load_test.go:333: 10000 tasks, 10512 runs, 41 archived by their handlers, 9 kills, 4 restarts, in 31s",
		"cronlock":           "    chaos_test.go:52: 12 schedules from seed 7",
		"fence":              "    contest_test.go:247: fence: 77 commits, 12 refusals, 0 unknown, 1 aborted; violations: 0 order",
		"traced-history":     "    soak_test.go:119: 28867 events explained",
		"traced-core":        "    protocol_traced_test.go:211: 4147 events on the server",
		"history":            "sum: 12 histories, 3456 operations, 7 unknown, 0 violations; of the controls 3 in 9",
	}
	want := map[string]int64{"simulation": 400, "redlock-simulation": 120, "redlock-storm": 812, "tick-scripts": 13, "fence-script": 14, "asynqlock": 10512, "cronlock": 12, "model": 20000, "schedule": 6000, "fence": 77, "history": 3456, "traced-history": 28867, "traced-core": 4147}
	for _, p := range all() {
		text := []byte(samples[p.name] + "\n" + samples[p.name])
		if got := sum(p.counts, text); got != 2*want[p.name] {
			t.Errorf("%s: counted %d, want %d", p.name, got, 2*want[p.name])
		}
		source, err := filepath.Glob(filepath.Join("..", "..", "..", p.dir, "*_test.go"))
		if err != nil || len(source) == 0 {
			t.Errorf("%s: no tests in %s: %v", p.name, p.dir, err)
		}
	}
}

// A part gets its seed and its time, and what it prints is counted, also where it fails.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "part")
	text := "#!/bin/sh\necho \"$SEED seeds from $DURATION of $2\"\nexit $HOLDFAST_SOAK\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	parts := all()
	p := parts[slices.IndexFunc(parts, func(p *part) bool { return p.name == "simulation" })]
	p.binary, p.dir, p.again = script, dir, "again"
	log := filepath.Join(dir, "log")
	for _, tests := range []string{p.tests, p.again} {
		if err := p.run(context.Background(), 42, time.Second, log); err == nil {
			t.Error("a part that fails passes")
		}
		said, _ := os.ReadFile(log)
		if want := "42 seeds from 1s of " + tests; strings.TrimSpace(string(said)) != want {
			t.Errorf("it said %q, want %q", said, want)
		}
	}
	if p.total != 84 {
		t.Errorf("counted %d, want 84", p.total)
	}
	s := &status{began: time.Now(), duration: time.Hour, parts: []*part{p}}
	s.turn(p, 7)
	s.ran(true)
	for _, want := range []string{"simulation SEED=7", "84 seeds", "violations 1"} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("the line %q lacks %q", s, want)
		}
	}
}
