package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// TestMain lets the test program be one of the processes, too.
func TestMain(m *testing.M) {
	if isChild(os.Args[1:]) {
		if err := start(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "6") // idle waiters, and servers that have to grow old
	}
	os.Exit(m.Run())
}

// The server counts what scripts call like what clients send, so the lists of the rivals have to be right.
func TestRivalsSendWhatTheyAreSaidTo(t *testing.T) {
	target := newTestTarget(t)
	for _, r := range append(slices.Clone(rivals), soloists[0]) {
		t.Run(r.name, func(t *testing.T) {
			link := servertest.Proxy(t, target.addr)
			team, err := openLocalTeam(t.Context(), r, link.Addr(), setting{goroutines: 4, lockers: 2}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := target.resetStats(t.Context()); err != nil {
				t.Fatal(err)
			}
			link.ResetCommands()
			if err := team.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if _, err := team.end(); err != nil {
				t.Fatal(err)
			}
			stats, err := target.stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			counted, _ := stats.split(r.sends)
			if got := link.Commands(); got.Total() != counted.calls || counted.calls == 0 {
				t.Errorf("counted %d in %v, but the client sent %v", counted.calls, stats, got)
			}
		})
	}
}

func TestJudgeCountsOwnerChanges(t *testing.T) {
	ms := int64(time.Millisecond)
	diaries := []diary{
		{Locker: 0, Holds: []hold{{0, 10 * ms, 11 * ms}, {11 * ms, 13 * ms, 14 * ms}}},
		{Locker: 0, Holds: []hold{{0, 17 * ms, 18 * ms}}, Failures: 2, Reason: "tired"},
		{Locker: 1, Holds: []hold{{5 * ms, 22 * ms, 23 * ms}, {23 * ms, 60 * ms, 61 * ms}}, Waiting: 20 * ms},
		{Locker: 1},
	}
	s := judge(diaries, 12*ms, 52*ms) // the first and the last hold are outside
	want := score{
		seconds: 0.04, acquires: 75, handOvers: 50, abroad: 0.5, p50: 3000, p99: 4000, worst: 32000,
		fair: 0.75, fairEach: 25. / 50, failures: 2, reason: "tired",
	}
	want.fairEach = 9. / (2 * 5)
	if s != want {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestJudgeSeesTwoHolders(t *testing.T) {
	long := []hold{{0, 1, 100}}
	for name, rest := range map[string][]hold{
		"one that begins inside": {{0, 99, 120}},
		"one inside":             {{0, 50, 60}},
		"one after another":      {{0, 20, 30}, {30, 40, 50}},
	} {
		if s := judge([]diary{{Holds: long}, {Holds: rest}}, 0, 200); s.clashes != len(rest) {
			t.Errorf("%s: got %d clashes, want %d", name, s.clashes, len(rest))
		}
	}
	if s := judge([]diary{{Holds: long}, {Holds: []hold{{0, 100, 120}}}}, 0, 200); s.clashes != 0 {
		t.Errorf("one after it: got %d clashes, want 0", s.clashes)
	}
}

func TestSectionSeesTwoInside(t *testing.T) {
	var s section
	if !s.enter(1) || !s.leave(1) {
		t.Error("alone: somebody else was seen")
	}
	if !s.enter(1) || s.enter(2) || s.leave(1) {
		t.Error("of two the second, or the first after it, saw nobody else")
	}
	c := crowd{section: section{entered: 2}, diaries: []diary{{Holds: make([]hold, 2)}, {Holds: make([]hold, 1)}}}
	if got := c.lost(); got != 1 {
		t.Errorf("three holds and two entries: got %d lost, want 1", got)
	}
}

func TestAWaitThatDoesNotEndFails(t *testing.T) {
	var d diary
	if end := d.since(7, errors.New("late")); end != 7 || d.Waiting != 7 || d.Failures != 1 || d.Reason != "no turn: late" {
		t.Errorf("got %d and %+v", end, d)
	}
	d = diary{Holds: []hold{{1, 9, 10}}}
	if end := d.since(7, nil); end != 10 || d.Holds[0].Asked != 7 || d.Failures != 0 {
		t.Errorf("got %d and %+v", end, d)
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		shares []float64
		want   float64
	}{
		{[]float64{5, 5, 5, 5}, 1},
		{[]float64{9, 0, 0, 0}, 0.25},
		{[]float64{1, 2}, 0.9},
	} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("%v: got %v, want %v", c.shares, got, c.want)
		}
	}
	if got := jain([]float64{0, 0}); !math.IsNaN(got) {
		t.Errorf("nobody has any: got %v, want not a number", got)
	}
}

func parseTestPlan(args ...string) (plan, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return parsePlan(flags, args)
}

func TestParsePlan(t *testing.T) {
	parse := parseTestPlan
	p, err := parse("-parts", "all", "-only", "holdfast (no local line),holdfast", "-sizes", "3,5")
	if err != nil || !slices.Equal(p.parts, partNames()) || !slices.Equal(p.sizes, []int{3, 5}) ||
		len(p.rivals) != 2 || p.rivals[0].name != rivals[1].name {
		t.Errorf("got %v, %v", p, err)
	}
	for _, bad := range []string{"-parts=most", "-only=me", "-sizes=a", "-rounds=-1"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}
