package history

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// seed is SEED, or one of its own for each name.
func seed(t *testing.T, fallback uint64) uint64 {
	t.Helper()
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return fallback
}

// brief is a lease that a worker is often stopped for longer than. It is for links without a proxy.
const brief = 600 * time.Millisecond

// scenes of the normal run, most with several faults in one. The soak has each alone, and what takes longer: links and
// crashes under limits, calls that only try, clocks of a minority. The scene that has to wait for its servers comes first.
var scenes = []struct {
	name string
	scene
}{
	{"five/amnesia", scene{nodes: 5, faults: []fault{crash, cut}}},
	{"five/processes", scene{nodes: 5, faults: []fault{stop, kill}, lease: brief, long: 6}},
	{"five/links", scene{nodes: 5, faults: []fault{cut, slow, storm}}},
	{"five/crashes", scene{nodes: 5, faults: []fault{crash}, durable: true}},
	{"one/processes", scene{nodes: 1, faults: []fault{stop, kill}, lease: brief, long: 6}},
	{"one/links", scene{nodes: 1, faults: []fault{cut, slow, storm}}},
	{"one/crashes", scene{nodes: 1, faults: []fault{crash}, durable: true}},
	{"one/amnesia", scene{nodes: 1, faults: []fault{crash, flush}}},
	{"several/processes", scene{nodes: 1, several: hang / 2, crew: 6, faults: []fault{stop, kill}, lease: brief}},
	{"one/clock", scene{nodes: 1, faults: []fault{clock, stop}, lease: brief, long: 10}},
	{"one/back", scene{nodes: 1, faults: []fault{back, stop}, lease: brief, long: 10}},
	{"five/clocks", scene{nodes: 5, faults: []fault{clocksOfAll, stop}, lease: brief, long: 10}},
	{"five/back", scene{nodes: 5, faults: []fault{backOfAll, stop}, lease: brief, long: 10}},
	{"limits/processes", scene{nodes: 1, limits: true, faults: []fault{stop, kill}, lease: brief, long: 20}},
	{"limits/amnesia", scene{nodes: 1, limits: true, faults: []fault{crash, flush, del}}},
}

// What is recorded on real servers under faults could have happened one call after the other.
func TestHistories(t *testing.T) {
	t.Parallel()
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.lock = Holdfast
			s.play(t, seed(t, uint64(time.Now().UnixNano())), 1500*time.Millisecond, true).judge(false)
		})
	}
}

// judge judges what was recorded, and fails the test for a breach or for nothing to judge, unless it is to be quiet.
func (w *world) judge(quiet bool) (map[string]*Tally, []Breach) {
	t := w.t
	t.Helper()
	if t.Failed() {
		t.Fatalf("SEED=%d", w.seed)
	}
	tallies, breaches, err := w.record.Judge(!quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		judges := []string{"mutex", "fence", "reentry", "claim"}
		switch {
		case w.several > 0:
			judges = []string{"mutex", "fence", "progress"}
		case w.limits:
			judges = []string{"permit", "shared"}
		}
		if !slices.Contains(judges, name) {
			delete(tallies, name)
			continue
		}
		t.Logf("%-8s %+v", name, *tallies[name])
		if tallies[name].Granted == 0 && !quiet {
			t.Errorf("SEED=%d: nothing granted in %v: that is a history of nothing", w.seed, hang)
		}
	}
	t.Logf("SEED=%d, faults %v", w.seed, w.happened)
	if !quiet {
		for _, b := range breaches {
			t.Errorf("SEED=%d: %v", w.seed, b)
		}
	}
	return tallies, breaches
}
