package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// crowdPart is a part in which goroutines want the same key.
type crowdPart struct {
	name, title string
	sizes       []int // numbers of goroutines
	setting     func(p plan, n int) setting
	columns     []column[score]
}

var crowds = []crowdPart{
	{"goroutines", "One process, one Locker, n goroutines that take the same key over and over", []int{2, 16, 64, 256},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: 1} }, crowded},
	{"lockers", "One process, n goroutines with a Locker and a client each", []int{16, 64},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: n} }, crowded},
	{"processes", "Processes, each with one Locker and n goroutines", []int{8},
		func(p plan, n int) setting { return setting{goroutines: n, processes: p.processes} }, severally},
	{"line", "n goroutines of one Locker wait behind a holder, and each takes one turn", []int{64},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: 1, once: true} }, served},
	{"lines", "n goroutines with a Locker and a client each wait behind a holder, and each takes one turn", []int{16},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: n, once: true} }, served},
}

// The columns of the parts under contention. Time is in the unit that its head names.
var (
	hottest = []column[score]{
		typical("hand-overs/s", 0, func(s score) float64 { return s.handOvers }),
		ratio("ratio", func(s score) float64 { return s.handOvers }),
		typical("p50 µs", 1, func(s score) float64 { return s.p50 }),
		typical("PINGs", 1, func(s score) float64 { return s.p50 / s.trip }),
		typical("p99 µs", 0, func(s score) float64 { return s.p99 }),
	}
	fairness = []column[score]{
		typical("acquires/s", 0, func(s score) float64 { return s.acquires }),
		typical("longest wait ms", 1, func(s score) float64 { return s.worst / 1e3 }),
		typical("Jain", 2, func(s score) float64 { return s.fair }),
	}
	amongProcesses = []column[score]{
		typical("Jain of processes", 3, func(s score) float64 { return s.fairEach }),
		typical("% to another", 0, func(s score) float64 { return 100 * s.abroad }),
	}
	price = []column[score]{
		typical("commands", 2, func(s score) float64 { return s.commands }),
		typical("script µs", 1, func(s score) float64 { return s.script }),
		failed[score](),
		total("clashes", func(s score) int { return s.clashes }),
	}

	crowded   = slices.Concat(hottest, fairness, price)
	severally = slices.Concat(hottest, fairness, amongProcesses, price)
	served    = slices.Concat(hottest,
		[]column[score]{typical("last after ms", 1, func(s score) float64 { return s.worst / 1e3 })}, price)
)

var crowdLegend = "A hand-over is an acquisition by another goroutine than the last holder's (with one goroutine: any); " +
	"its latency runs from before the release until the next holder has the lock. ratio: of hand-overs/s to the first " +
	"line's. PINGs: p50 in idle round trips over the same client. longest wait: of a round, also of those that were " +
	"still waiting at its end. Jain: fairness of the goroutines' acquisitions, 1 when all have as many and 1/n when one " +
	"has all. % to another: hand-overs to another process. commands: sent by the clients, for each hand-over. script µs: " +
	"the server's time for an EVALSHA. failed: acquires that gave up, releases that failed, and waits in a line that had " +
	"not ended " + fmt.Sprint(stranded) + " after the holder left. clashes: signs of two holders at a time. –: too few " +
	"hand-overs."

func crowdParts() (parts []part) {
	for _, c := range crowds {
		parts = append(parts, part{name: c.name, rounds: 3, duration: contentionRound, measure: func(p plan, ctx context.Context, s *server) (table, error) {
			return c.contest(p, ctx, s)
		}})
	}
	return parts
}

// contest measures all sizes of a crowd.
func (c crowdPart) contest(p plan, ctx context.Context, s *server) (table, error) {
	t := newTarget(s.addr, 4)
	defer t.close()
	var rows []row[score]
	for _, n := range p.choose(c.sizes) {
		group, err := p.contend(ctx, t, c.setting(p, n))
		if err != nil {
			return table{}, err
		}
		rows = append(rows, group...)
	}
	title := fmt.Sprintf("%s; medians of %d rounds of %v. A PING over an idle connection: %s.",
		c.title, p.rounds, p.duration, p.roundTrips(rows))
	return tabulate(title, []string{"n", ""}, c.columns, rows, crowdLegend), nil
}

// roundTrips gives all scores the least that a PING over their client took in any of them: it varies more than rivals do,
// by several times where the processors go to sleep between question and answer.
func (p plan) roundTrips(rows []row[score]) string {
	best := map[string]float64{}
	of := func(i int) string { return p.rivals[i%len(p.rivals)].client }
	for i, r := range rows {
		for _, s := range r.samples {
			best[of(i)] = min(cmp.Or(best[of(i)], s.trip), s.trip)
		}
	}
	for i, r := range rows {
		for k := range r.samples {
			r.samples[k].trip = best[of(i)]
		}
	}
	var all []string
	for _, client := range slices.Sorted(maps.Keys(best)) {
		all = append(all, fmt.Sprintf("%.0f µs by %s", best[client], client))
	}
	return strings.Join(all, ", ")
}

// choose returns the sizes asked for, or else a part's own.
func (p plan) choose(sizes []int) []int {
	if len(p.sizes) > 0 {
		return p.sizes
	}
	return sizes
}
