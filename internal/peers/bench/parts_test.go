package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Each part has a row for each contender in each setting. What a peer does there is a finding; ours must not fail.
func TestEveryPartMeasures(t *testing.T) {
	for _, part := range partNames() {
		switch part {
		case "guard": // which runs the benchmarks of another module
			continue
		case "bulk", "shares", "tasks": // which have tests of their own
			continue
		}
		t.Run(part, func(t *testing.T) {
			if part != "held" { // which measures the whole process
				t.Parallel()
			}
			p := brief(part)
			p.takers = slices.DeleteFunc(slices.Clone(takers), func(e takerEntry) bool { return e.name == failFast }) // seconds more
			table := measured(t, p)[0]
			for idle(table) && p.duration < 10*time.Second { // a busy machine gave them no turn
				p.duration *= 10
				table = measured(t, p)[0]
			}
			if got, want := len(table.Rows), p.rows(part); got != want {
				t.Errorf("got %d rows, want %d", got, want)
			}
			for _, row := range table.Rows {
				if strings.HasPrefix(table.text(row, ""), us) && !works(table, row) {
					t.Errorf("got %v", row)
				}
			}
		})
	}
}

// rows is how many a part has.
func (p plan) rows(part string) (n int) {
	switch part {
	case uncontended, "far":
		return len(soloists) * len(solos) * len(clients)
	case "mix":
		return len(mixers) * 2 * len(clients)
	case "refused":
		return len(soloists)
	case "idle":
		return 2 * len(rivals)
	case "limits":
		return (len(p.parties())-1)*len(hosts) + len(readingHosts)
	case "held":
		return len(keepers)
	case "redlock":
		for _, e := range p.takers {
			for _, s := range situations {
				if !e.healthy || s.healthy() {
					n += len(s.sizes)
				}
			}
		}
		return n
	}
	return len(rivals)
}

// idle says that one of ours had no turn.
func idle(t table) bool {
	return slices.ContainsFunc(t.Rows, func(row []any) bool {
		return strings.HasPrefix(t.text(row, ""), us) && (t.get(row, "hand-overs/s") == 0 || t.get(row, "acquires/s") == 0 || t.get(row, "cycles/s") == 0)
	})
}

// works tells of a row of ours whether it did what it was asked to, at the price that is known.
func works(t table, row []any) bool {
	positive := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return !(t.get(row, name) > 0) })
	}
	failed, commands := t.get(row, "failed"), t.get(row, "commands")
	switch t.Part {
	case uncontended, "far":
		// Several goroutines' commands travel as one.
		return failed == 0 && positive("cycles/s", "client µs", "CPU ratio") && (commands == 2 || t.get(row, "n") > 1 && commands < 2)
	case "mix":
		return failed == 0 && positive("cycles/s")
	case "refused":
		return failed == 0 && commands == 1
	case "idle":
		return failed == 0 && t.get(row, "clashes") == 0
	case "limits":
		return failed == 0 && t.get(row, "beyond") == 0 && positive("acquires/s")
	case "held":
		return failed == 0 && positive("heap bytes") && t.get(row, "goroutines") < 50
	case "redlock":
		tries := t.get(row, "tries")
		switch stopped := t.text(row, "servers") == "three stopped"; {
		case t.text(row, "") != us: // its lease is too short for a busy machine
		case stopped && failed != tries, !stopped && failed > tries/4: // a busy machine lets some answers come too late
			return false
		}
		// A server that is silent for a while is asked less, and one that answers late once more.
		return commands >= 1 && commands <= 4
	}
	return failed == 0 && t.get(row, "clashes") == 0 && positive("hand-overs/s", "script µs")
}
