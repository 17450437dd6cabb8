package history

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// cells are what a soak goes through: each fault alone, on one server and on five.
func cells() (all []cell) {
	for _, nodes := range []int{1, 5} {
		name := map[int]string{1: "one", 5: "five"}[nodes]
		for _, f := range []fault{stop, kill, cut, slow, storm, flush, clock, back} {
			s := scene{lock: Holdfast, nodes: nodes, faults: []fault{f}}
			if f.name == stop.name {
				s.lease, s.long = brief, 6
			}
			all = append(all, cell{name: name + "/" + f.name, scene: s})
		}
		all = append(all, cell{name: name + "/crash", scene: scene{lock: Holdfast, nodes: nodes, faults: []fault{crash}, durable: true}},
			cell{name: name + "/amnesia", scene: scene{lock: Holdfast, nodes: nodes, faults: []fault{crash, cut}}},
			cell{name: name + "/clock-stop", scene: scene{lock: Holdfast, nodes: nodes, faults: []fault{clock, stop, kill}, lease: brief, long: 6}},
			cell{name: name + "/clock-links", scene: scene{lock: Holdfast, nodes: nodes, faults: []fault{clock, cut, slow, storm}}})
	}
	for _, f := range []fault{clocksOfAll, backOfAll} {
		all = append(all, cell{name: "five/" + f.name + "-of-all", scene: scene{lock: Holdfast, nodes: 5, faults: []fault{f, stop}, lease: brief}})
	}
	limits := scene{lock: Holdfast, nodes: 1, limits: true}
	for _, f := range []fault{stop, kill, cut, slow, storm, flush, del, crash, clock, back} {
		s := limits
		s.faults, s.durable = []fault{f}, f.name == crash.name
		if f.name == stop.name {
			s.lease, s.long = brief, 20
		}
		all = append(all, cell{name: "limits/" + f.name, scene: s})
	}
	limits.faults, limits.tries, limits.lease, limits.longer = []fault{stop, rarely}, true, short, 2*time.Second
	all = append(all, cell{name: "limits/tries", scene: limits})
	for _, f := range []fault{stop, kill, crash, clock} {
		s := scene{lock: Holdfast, nodes: 1, several: hang / 2, crew: 16, faults: []fault{f}, durable: f.name == crash.name}
		all = append(all, cell{name: "several/" + f.name, scene: s})
	}
	for _, s := range sound {
		s.lock = Plain
		all = append(all, cell{name: "plain/" + s.name, scene: s.scene})
	}
	for _, c := range controls {
		all = append(all, cell{name: "control/" + strings.ReplaceAll(c.name, " ", "-"), scene: c.scene, control: c.model})
	}
	if tracing {
		all = slices.DeleteFunc(all, func(c cell) bool { return !traced(c.scene) })
	}
	return all
}

type cell struct {
	name    string
	scene   scene
	control string // the model that is to find it wrong; empty for what is to pass

	sum map[string]*Tally
}

// TestSoak goes on for DURATION, through all cells with one seed and then with the next, from SEED. One that fails says
// which, and is repeated with that and by its name, DURATION=1s SEED=42 HOLDFAST_SOAK=1 go test -run 'TestSoak//^five$/^stop$',
// as far as the scheduler lets it.
func TestSoak(t *testing.T) {
	if os.Getenv("HOLDFAST_SOAK") == "" {
		t.Skip("HOLDFAST_SOAK=1 goes on for DURATION, from SEED")
	}
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "1m"))
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(duration)
	var mu sync.Mutex // guards what follows, while cells are played
	all, found := cells(), false
	for n := seed(t, rand.Uint64N(1<<40)); !t.Failed() && time.Now().Before(end); n++ {
		order := rand.New(rand.NewPCG(n, 3)).Perm(len(all)) // so that a short one does not always play the same
		t.Run(fmt.Sprint("seed=", n), func(t *testing.T) {
			for _, i := range order {
				c := &all[i]
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					mu.Lock()
					over := time.Now().After(end)
					mu.Unlock()
					if over && (duration > time.Second || found) {
						t.SkipNow()
					}
					tallies := c.soak(t, n)
					mu.Lock()
					defer mu.Unlock()
					if c.sum == nil {
						c.sum = map[string]*Tally{}
					}
					for model, tally := range tallies {
						if c.sum[model] == nil {
							c.sum[model] = &Tally{}
						}
						c.sum[model].Add(*tally)
					}
					if t.Failed() {
						end, found = time.Now(), true
					}
				})
			}
		})
	}
	lines, sum, caught := table(all)
	t.Log(lines)
	t.Logf("%d events explained", explained.Load())
	if tracing && sum.Histories+caught.Histories > 0 && explained.Load() == 0 {
		t.Error("nothing was held against the specification")
	}
	if caught.Histories >= 10 && caught.Violations == 0 && !found {
		t.Errorf("no violation in %d histories of locks that are broken on purpose: it would not see one in the %d others either",
			caught.Histories, sum.Histories)
	}
}

// soak plays a cell once.
func (c *cell) soak(t *testing.T, n uint64) map[string]*Tally {
	length := 6 * time.Second
	switch {
	case c.control != "":
		length = 2 * time.Second
	case strings.HasPrefix(c.name, "several/"):
		length = 15 * time.Second
	case strings.HasSuffix(c.name, "five/amnesia"):
		length = 10 * time.Second
	}
	w := c.scene.play(t, n, length, c.control == "")
	tallies, _ := w.judge(c.control != "")
	return tallies
}

// table has a line for each cell and model, and the sums: of what is to pass, and of what the controls were to find.
func table(all []cell) (lines string, sum, caught Tally) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-28s %-8s %9s %10s %8s %8s %8s %8s %8s %6s %6s %10s\n", "cell", "model", "histories", "operations",
		"granted", "refused", "excused", "unknown", "lost", "stale", "", "violations")
	for _, c := range all {
		for _, model := range slices.Sorted(maps.Keys(c.sum)) {
			t := c.sum[model]
			if t.Histories == 0 || c.control != "" && c.control != model {
				continue
			}
			note := ""
			if c.control != "" {
				note = "wanted"
				caught.Add(*t)
			} else {
				sum.Add(*t)
			}
			fmt.Fprintf(&b, "%-28s %-8s %9d %10d %8d %8d %8d %8d %8d %6d %6s %10d\n", c.name, model, t.Histories, t.Operations,
				t.Granted, t.Refused, t.Excused, t.Unknown, t.Lost, t.Stale, note, t.Violations)
		}
	}
	fmt.Fprintf(&b, "sum: %d histories, %d operations, %d unknown, %d violations; of the controls %d in %d\n",
		sum.Histories, sum.Operations, sum.Unknown, sum.Violations, caught.Violations, caught.Histories)
	return b.String(), sum, caught
}
