package model

import (
	"hash/maphash"
	"math/rand/v2"
)

// Result of a search.
type Result struct {
	Breach Breach
	Trace  []Action // the way there
	States int
	Depth  int  // steps
	Whole  bool // all that can be reached was visited
}

// Search visits the worlds that sc can reach, in the order of how many steps it takes, until it finds a breach or
// has seen limit of them. Worlds are told apart by a 64-bit hash: that two of a million collide, and one is missed,
// is less likely than one in 10^7.
func Search(sc *Scenario, limit int) Result {
	type node struct {
		parent int32
		action Action
	}
	seed := maphash.MakeSeed()
	begin := sc.Begin()
	nodes := []node{{parent: -1}}
	seen := map[uint64]struct{}{maphash.Comparable(seed, begin): {}}
	level, base := []World{begin}, 0
	var next []World
	var w World
	var actions []Action
	trace := func(i int) []Action {
		var way []Action
		for ; nodes[i].parent >= 0; i = int(nodes[i].parent) {
			way = append([]Action{nodes[i].action}, way...)
		}
		return way
	}
	for depth := 0; len(level) > 0; depth++ {
		next = next[:0]
		end := len(nodes)
		for i := range level {
			actions = sc.Actions(&level[i], actions[:0])
			for _, a := range actions {
				w = level[i]
				if b := sc.Apply(&w, a); b != Kept {
					return Result{Breach: b, Trace: append(trace(base+i), a), States: len(nodes), Depth: depth + 1}
				}
				h := maphash.Comparable(seed, w)
				if _, ok := seen[h]; ok {
					continue
				}
				seen[h] = struct{}{}
				nodes = append(nodes, node{int32(base + i), a})
				next = append(next, w)
			}
			if len(nodes) >= limit {
				return Result{States: len(nodes), Depth: depth + 1}
			}
		}
		level, next, base = next, level, end
	}
	return Result{States: len(nodes), Whole: true}
}

// Walk goes at random from the beginning to the end of sc, once for each seed below walks, and ends with the first
// breach. It reaches depths that Search does not.
func Walk(sc *Scenario, seed uint64, walks, steps int) Result {
	var r Result
	var actions []Action
	for i := range walks {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		w := sc.Begin()
		r.Trace = r.Trace[:0]
		for range steps {
			if actions = sc.Actions(&w, actions[:0]); len(actions) == 0 {
				break
			}
			a := actions[rnd.IntN(len(actions))]
			r.Trace = append(r.Trace, a)
			r.States++
			if r.Breach = sc.Apply(&w, a); r.Breach != Kept {
				return r
			}
		}
	}
	return r
}
