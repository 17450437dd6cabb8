package history

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// short is a lease that is often over. It is for locks that do not have to be had.
const short = 400 * time.Millisecond

// controls are broken in one point each, which the model named must find on the same faults.
var controls = []struct {
	name, model string
	scene       scene
	soak        bool // the soak alone has it: it takes long, or another shows already that the model sees
}{
	{"blind release", "mutex", scene{lock: "blind release", nodes: 1, faults: []fault{stop}, long: 3, lease: short}, false},
	{"lease from reply", "mutex", scene{lock: "lease from reply", nodes: 1, faults: []fault{lag}, uneven: true, lease: short}, false},
	{"local tokens", "fence", scene{lock: "local tokens", nodes: 1, faults: []fault{kill}}, false},
	{"careless register", "fence", scene{lock: Holdfast, nodes: 1, faults: []fault{stop}, careless: true, long: 3, lease: short}, false},
	{"shallow release", "reentry", scene{lock: "shallow release", nodes: 1, faults: []fault{stop}, long: 8}, false},
	{"GET then SET", "claim", scene{lock: "GET then SET", nodes: 1, faults: []fault{slow}}, false},
	{"one too many", "permit", scene{lock: "one too many", nodes: 1, limits: true, faults: []fault{stop}}, false},
	{"own limit instead of the least", "permit", scene{lock: "own limit", nodes: 1, limits: true, faults: []fault{stop}}, true},
	{"reader beside a writer", "shared", scene{lock: "own limit", nodes: 1, limits: true, faults: []fault{stop}}, false},
	{"tokens of readers do not count", "shared", scene{lock: "local tokens", nodes: 1, limits: true, faults: []fault{kill}}, true},
	{"reader kept alive by others", "shared", scene{lock: "revived", nodes: 1, limits: true, tries: true, faults: []fault{rarely}, long: 1e6, lease: short, longer: 4 * time.Second}, true},
	{"keys as named", "progress", scene{lock: "keys as named", nodes: 1, several: 3 * time.Second, crew: 4, long: 1e6, lease: time.Minute}, false},
	{"keeps what is above the refused key", "progress", scene{lock: "keeps above", nodes: 1, several: 3 * time.Second, crew: 4, long: 1e6, lease: time.Minute}, true},
	{"released under a leader", "mutex", scene{lock: "hasty leader", nodes: 1, several: hang / 2, leads: true, faults: []fault{stop}, lease: brief}, true},
	{"leader that ignores its loss", "mutex", scene{lock: "leads on", nodes: 1, several: hang / 2, leads: true, faults: []fault{stop}, lease: brief}, true},
	{"lease by a clock set forward", "mutex", scene{lock: Holdfast, nodes: 1, faults: []fault{clock}, unaware: true, long: 2, lease: short}, false},
	{"leases by clocks set forward", "mutex", scene{lock: Holdfast, nodes: 5, faults: []fault{clocksOfAll}, unaware: true, long: 2, lease: short}, true},
	{"stale write after a step", "fence", scene{lock: Holdfast, nodes: 1, faults: []fault{clock}, careless: true, long: 3}, true},
	{"tokens by the clock", "fence", scene{lock: "clock tokens", nodes: 1, faults: []fault{back}}, false},
	{"ticks without a window", "claim", scene{lock: "brief marks", nodes: 1, faults: []fault{clock}}, false},
	{"no quarantine", "mutex", scene{lock: Holdfast, nodes: 5, faults: []fault{crash}, exposed: true, long: 2, lease: 3 * time.Second}, false},
}

// The models find what is broken.
func TestControls(t *testing.T) {
	t.Parallel()
	for _, c := range controls {
		if c.soak {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := seed(t, uint64(time.Now().UnixNano()))
			const patience = 2 * hang // a kill may miss what it is to leave behind several times in a row
			for end := time.Now().Add(patience); ; n++ {
				if c.scene.find(t, c.model, n, 1500*time.Millisecond) > 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("SEED=%d: nothing found in %v: the model of the %s sees nothing", n, patience, c.model)
				}
			}
		})
	}
}

// find plays a control, and returns how many histories its model found wrong.
func (s scene) find(t *testing.T, model string, seed uint64, length time.Duration) (n int) {
	t.Helper()
	w := s.play(t, seed, length, false)
	_, breaches := w.judge(true)
	for _, b := range breaches {
		if b.Model == model && b.Verdict == porcupine.Illegal {
			n++
		}
	}
	return n
}

// sound is what is not broken.
var sound = []struct {
	name string
	scene
	soak bool
}{
	{"mutex", scene{nodes: 1, faults: []fault{stop, kill, slow}, long: 8}, false},
	{"limits", scene{nodes: 1, faults: []fault{stop, kill}, long: 8, limits: true, lease: brief}, false},
	{"leader", scene{nodes: 1, several: hang / 2, leads: true, faults: []fault{stop, kill}, lease: brief}, true},
	{"clock", scene{nodes: 1, faults: []fault{clock, stop}, long: 8}, true},
	{"several", scene{nodes: 1, several: 10 * time.Second, crew: 4, long: 1e6, lease: time.Minute}, true},
}

// What is not broken passes, so that it is the flaw that is found in the others.
func TestPlainLockPasses(t *testing.T) {
	t.Parallel()
	for _, s := range sound {
		if s.soak {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.lock = Plain
			s.play(t, seed(t, uint64(time.Now().UnixNano())), 1500*time.Millisecond, true).judge(false)
		})
	}
}
