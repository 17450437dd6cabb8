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
}{
	{"blind release", "mutex", scene{lock: "blind release", nodes: 1, faults: []fault{stop}, long: 3, lease: short}},
	{"lease from reply", "mutex", scene{lock: "lease from reply", nodes: 1, faults: []fault{lag}, uneven: true, lease: short}},
	{"local tokens", "fence", scene{lock: "local tokens", nodes: 1, faults: []fault{kill}}},
	{"careless register", "fence", scene{lock: Holdfast, nodes: 1, faults: []fault{stop}, careless: true, long: 3, lease: short}},
	{"shallow release", "reentry", scene{lock: "shallow release", nodes: 1, faults: []fault{stop}, long: 8}},
	{"GET then SET", "claim", scene{lock: "GET then SET", nodes: 1, faults: []fault{slow}}},
	{"no quarantine", "mutex", scene{lock: Holdfast, nodes: 5, faults: []fault{crash}, exposed: true, long: 2, lease: 3 * time.Second}},
}

// The models find what is broken.
func TestControls(t *testing.T) {
	t.Parallel()
	for _, c := range controls {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := seed(t, uint64(time.Now().UnixNano()))
			for end := time.Now().Add(hang); ; n++ {
				if c.scene.find(t, c.model, n, 1500*time.Millisecond) > 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("SEED=%d: nothing found in %v: the model of the %s sees nothing", n, hang, c.model)
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

// What is not broken passes, so that it is the flaw that is found in the others.
func TestPlainLockPasses(t *testing.T) {
	t.Parallel()
	s := scene{lock: Plain, nodes: 1, faults: []fault{stop, kill, slow}, long: 8}
	s.play(t, seed(t, uint64(time.Now().UnixNano())), 1500*time.Millisecond, true).judge(false)
}
