package model

import (
	"math/bits"
	"testing"
)

// A call that takes several keys: where it is, and what it has. Sets of keys are bits.
type several struct {
	Has, Wants uint8
	Waits      int8 // the key in whose line it is, -1 for none
	Tries      bool // it asks for all that it lacks at once
	Done       bool
}

const (
	severalKeys  = 3
	severalCalls = 3
)

type severalState [severalCalls]several

// severalRules are those that keep calls from waiting in a circle.
type severalRules struct {
	sorted bool // all take their keys in one order, else as named: here every second call from the last to the first
	gives  bool // back what is behind the first key that is refused
}

// order is that of a call's keys.
func (r severalRules) order(call int) (keys []int8) {
	for i := range int8(severalKeys) {
		if !r.sorted && call%2 == 1 {
			i = severalKeys - 1 - i
		}
		keys = append(keys, i)
	}
	return keys
}

// next are the states after one step of one call. The answers to the tries of one call come in any order, so that another call
// may be in between: each is a step.
func (r severalRules) next(s severalState) (all []severalState) {
	taken := uint8(0)
	for _, c := range s {
		taken |= c.Has
	}
	for i, c := range s {
		step := func(change func(*several)) {
			after := s
			change(&after[i])
			all = append(all, after)
		}
		lacks := c.Wants &^ c.Has
		switch {
		case c.Done:
		case lacks == 0: // it runs, and releases
			step(func(c *several) { *c = several{Waits: -1, Done: true} })
		case c.Waits >= 0:
			if taken&(1<<c.Waits) == 0 {
				step(func(c *several) { c.Has |= 1 << c.Waits; c.Waits, c.Tries = -1, true })
			}
		case c.Tries:
			for _, k := range r.order(i) {
				if bit := uint8(1) << k; lacks&^taken&bit != 0 {
					step(func(c *several) { c.Has |= bit })
				}
			}
			if lacks&taken != 0 {
				step(func(c *several) { c.Tries = false })
			}
		default: // all have answered
			refused := false
			step(func(c *several) {
				for _, k := range r.order(i) {
					bit := uint8(1) << k
					switch {
					case lacks&bit != 0 && !refused:
						c.Waits, refused = k, true
					case refused && r.gives:
						c.Has &^= bit
					}
				}
			})
		}
	}
	return all
}

// circle searches all that calls of these keys can come to, for a state in which nobody can move.
func (r severalRules) circle(wants [severalCalls]uint8) (states int, way []severalState) {
	var first severalState
	for i := range first {
		first[i] = several{Wants: wants[i], Waits: -1, Tries: true}
	}
	from := map[severalState]severalState{first: first}
	for line := []severalState{first}; len(line) > 0; line = line[1:] {
		s, done, after := line[0], 0, r.next(line[0])
		for _, c := range s {
			if c.Done {
				done++
			}
		}
		if len(after) == 0 && done < severalCalls {
			for way = append(way, s); s != first; way = append(way, s) {
				s = from[s]
			}
			return len(from), way
		}
		for _, a := range after {
			if _, ok := from[a]; !ok {
				from[a] = s
				line = append(line, a)
			}
		}
	}
	return len(from), nil
}

// Calls that take several keys never wait in a circle, and would without either of the rules that they follow.
func TestCallsOfSeveralKeysWaitInNoCircle(t *testing.T) {
	for _, c := range []struct {
		name   string
		rules  severalRules
		circle bool
	}{
		{"both", severalRules{sorted: true, gives: true}, false},
		{"keys as named", severalRules{gives: true}, true},
		{"what is behind is kept", severalRules{sorted: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sum, found := 0, 0
			for n := range 1 << (severalCalls * severalKeys) {
				wants, pairs := [severalCalls]uint8{}, true
				for i := range wants {
					wants[i] = uint8(n >> (i * severalKeys) & (1<<severalKeys - 1))
					pairs = pairs && bits.OnesCount8(wants[i]) > 1
				}
				if !pairs {
					continue
				}
				states, way := c.rules.circle(wants)
				if sum += states; way != nil {
					if found++; !c.circle {
						t.Fatalf("%+v", way)
					}
				}
			}
			t.Logf("%d states, circles for %d sets of keys", sum, found)
			if c.circle && found == 0 {
				t.Error("no circle without the rule")
			}
		})
	}
}
