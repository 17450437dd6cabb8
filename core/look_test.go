package holdfast_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// When a waiter looks again. The first pause and the tenth have to lie in their ranges, whatever the random part is.
func TestWhenAWaiterLooksAgain(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type within [2]time.Duration
	for name, c := range map[string]struct {
		seen         holdfast.Look
		wait, passed time.Duration
		first, tenth within
		last         bool
	}{
		"a grant will be signalled":                 {seen: holdfast.Look{Left: time.Minute, Place: 1, Pushed: true}, wait: -1, first: within{1600 * ms, 2 * s}, tenth: within{1600 * ms, 2 * s}},
		"and the lease ends before":                 {seen: holdfast.Look{Left: s, Place: 1, Pushed: true}, wait: -1, first: within{s, s + 10*ms}, tenth: within{s, 1500 * ms}},
		"others are in front":                       {seen: holdfast.Look{Left: s, Place: 6, Pushed: true}, wait: -1, first: within{s + 50*ms, s + 60*ms}, tenth: within{s + 50*ms, 1500 * ms}},
		"the leases of the holder are always short": {seen: holdfast.Look{Left: 5 * ms, Place: 1, Pushed: true}, wait: -1, first: within{5 * ms, 15 * ms}, tenth: within{s, 2 * s}},
		"a holder that notifies nobody":             {seen: holdfast.Look{Left: time.Minute, Place: 1, Pushed: true, Foreign: true}, wait: -1, first: within{10 * ms, 31 * ms}, tenth: within{10 * ms, 250 * ms}},
		"but not for the second in line":            {seen: holdfast.Look{Left: time.Minute, Place: 2, Pushed: true, Foreign: true}, wait: -1, first: within{1600 * ms, 2 * s}, tenth: within{1600 * ms, 2 * s}},
		"no grant will be signalled":                {seen: holdfast.Look{Left: time.Minute, Place: 1}, wait: -1, first: within{10 * ms, 31 * ms}, tenth: within{10 * ms, 250 * ms}},
		"nor that, and the lease ends":              {seen: holdfast.Look{Left: 3 * ms, Place: 1}, wait: -1, first: within{3 * ms, 13 * ms}, tenth: within{3 * ms, 13 * ms}},
		"the look failed":                           {seen: holdfast.Look{Failed: true, Pushed: true}, wait: -1, first: within{10 * ms, 31 * ms}, tenth: within{10 * ms, 250 * ms}},
		"several ask at once":                       {seen: holdfast.Look{Split: true, Pushed: true}, wait: -1, first: within{ms, 11 * ms}, tenth: within{ms, 251 * ms}},
		"the wait ends before":                      {seen: holdfast.Look{Left: time.Minute, Place: 1, Pushed: true}, wait: 3 * s, passed: 2500 * ms, first: within{500 * ms, 500 * ms}, tenth: within{500 * ms, 500 * ms}, last: true},
		"the wait ends after":                       {seen: holdfast.Look{Left: time.Minute, Place: 1, Pushed: true}, wait: 3 * s, passed: 500 * ms, first: within{1600 * ms, 2 * s}, tenth: within{1600 * ms, 2 * s}},
		"the wait is over":                          {seen: holdfast.Look{Left: time.Minute, Place: 1}, wait: s, passed: 2 * s, first: within{10 * ms, 31 * ms}, tenth: within{10 * ms, 250 * ms}},
	} {
		for range 100 {
			all, last := holdfast.Pauses(10, c.seen, c.wait, c.passed)
			for i, want := range map[int]within{0: c.first, 9: c.tenth} {
				if all[i] < want[0] || all[i] > want[1] {
					t.Fatalf("%s: pause %d is %v, want %v", name, i+1, all[i], want)
				}
			}
			if last != c.last {
				t.Fatalf("%s: last %v", name, last)
			}
		}
	}
}
