package main

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// slots is how many scenarios run at once: most of what they do is to wait.
var slots = make(chan struct{}, 20)

// inAll runs fn for all scenarios and returns what it said, in their order.
func inAll(fn func(scenario) verdict) []verdict {
	verdicts := make([]verdict, len(scenarios))
	var runs sync.WaitGroup
	for i, s := range slices.Backward(scenarios) { // the longest come last
		slots <- struct{}{}
		runs.Go(func() {
			defer func() { <-slots }()
			verdicts[i] = fn(s)
		})
	}
	runs.Wait()
	return verdicts
}

func TestHoldfast(t *testing.T) {
	t.Parallel()
	servertest.Redis(t) // or there is nothing to test on
	verdicts := inAll(func(s scenario) verdict { return s.try(holdfastLibrary, 20*time.Second) })
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			v := verdicts[i]
			t.Log(v.note)
			if v.outcome != passes {
				t.Errorf("got %s, want pass. %s", v.outcome, s.wrong)
			}
		})
	}
}

// TestControls shows that each scenario can be failed, and is failed for what it is about.
func TestControls(t *testing.T) {
	t.Parallel()
	servertest.Redis(t)
	t.Cleanup(func() { close(stranded); stranded = make(chan struct{}) })
	if got, want := names(scenarios), slices.Sorted(maps.Keys(controls)); !slices.Equal(got, want) {
		t.Fatalf("controls for %v, want for %v", want, got)
	}
	verdicts := inAll(func(s scenario) verdict { return s.try(controlled(s.name), 1500*time.Millisecond) })
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			v, want := verdicts[i], controls[s.name].note
			if v.outcome != fails || !strings.Contains(v.note, want) {
				t.Errorf("a lock with that mistake: got %s: %s, want fail: …%s…", v.outcome, v.note, want)
			}
		})
	}
}

func TestRunsThatDifferAreNoVerdict(t *testing.T) {
	t.Parallel()
	ok, bad, never := pass("well"), fail("badly"), verdict{aborted, "no server"}
	for _, c := range []struct {
		verdicts []verdict
		want     finding
	}{
		{[]verdict{ok, ok}, finding{Outcome: passes, Note: "well", Runs: 2}},
		{[]verdict{bad, bad}, finding{Outcome: fails, Note: "badly", Runs: 2, Fails: 2}},
		{[]verdict{ok, bad}, finding{Outcome: varies, Note: "badly", Runs: 2, Fails: 1}},
		{[]verdict{bad, never}, finding{Outcome: varies, Note: "badly", Runs: 2, Fails: 1}},
		{[]verdict{{noMatch, "none"}}, finding{Outcome: noMatch, Note: "none", Runs: 1}},
	} {
		if got := sum(c.verdicts); got != c.want {
			t.Errorf("sum of %v: got %+v, want %+v", c.verdicts, got, c.want)
		}
	}
}

// TestProgram leaves out the libraries of others, which are not to decide whether these tests pass.
func TestProgram(t *testing.T) {
	t.Parallel()
	servertest.Redis(t)
	const some = "^(owner-by-prefix|scripts-flushed|limit-lowered)$"
	var table bytes.Buffer
	only := "holdfast,SET NX PX," + peers.RedisSemaphore.Name
	if err := start([]string{"-times", "1", "-match", some, "-only", only}, &table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| owner-by-prefix [^1] | pass | pass |\n", "| limit-lowered [^3] | pass | pass |\n", "[^2]: ", "- SET NX PX: pass: "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &table)
		}
	}
	if out := leftOut(); strings.Contains(table.String(), "Left out of this program: "+strings.Join(out, ", ")+".") != (len(out) > 0) {
		t.Errorf("%q are left out, and the table is\n%s", out, &table)
	}
	for _, lib := range peers.Libraries() {
		if _, err := choose(lib.Name); (err != nil) == lib.Present() {
			t.Errorf("choosing %s: %v, and left out are %q", lib.Name, err, leftOut())
		}
	}
	for _, args := range [][]string{{"-only", "nobody"}, {"-match", "("}, {"-times", "0"}} {
		if err := start(args, io.Discard); err == nil {
			t.Errorf("start %q: no error", args)
		}
	}
}
