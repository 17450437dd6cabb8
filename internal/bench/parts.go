package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// part is one table of the report.
type part struct {
	name, title string
	sizes       []int // numbers of goroutines
	setting     func(p plan, n int) setting
	columns     []column[match]
}

const uncontended, idling, several = "uncontended", "idle", "redlock"

// contended are the parts in which goroutines want the same key.
var contended = []part{
	{"goroutines", "One process, one Locker, n goroutines that take the same key over and over", []int{1, 2, 16, 64, 256},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: 1} }, crowded},
	{"lockers", "One process, n goroutines with a Locker and a client each", []int{16, 64, 256},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: n} }, crowded},
	{"processes", "Processes, each with one Locker and n goroutines", []int{8},
		func(p plan, n int) setting { return setting{goroutines: n, processes: p.processes} }, severally},
	{"line", "n goroutines of one Locker wait behind a holder, and each takes one turn", []int{64},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: 1, once: true} }, served},
	{"lines", "n goroutines with a Locker and a client each wait behind a holder, and each takes one turn", []int{16, 256},
		func(_ plan, n int) setting { return setting{goroutines: n, lockers: n, once: true} }, served},
}

var idleSizes = []int{1, 16, 64, 256}

// all of the parts in which somebody waits together have a name, too.
const allContended = "contended"

func partNames() []string {
	names := []string{uncontended}
	for _, part := range contended {
		names = append(names, part.name)
	}
	return append(names, idling, several)
}

// queued are the names of the parts in which somebody waits.
func queued() []string {
	names := partNames()
	return names[1 : len(names)-1]
}

// parse returns the names in a list with commas.
func parseParts(list string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		switch known := partNames(); {
		case name == allContended:
			names = append(names, queued()...)
		case slices.Contains(known, name):
			names = append(names, name)
		default:
			return nil, fmt.Errorf("no part is called %q; there are %s, and %s for those in which somebody waits",
				name, strings.Join(known, ", "), allContended)
		}
	}
	return names, nil
}

// contest measures the parts in which somebody waits, and writes their tables, each as soon as it is there.
func (p plan) contest(ctx context.Context, w io.Writer, t *target) error {
	if !slices.ContainsFunc(queued(), p.has) {
		return nil
	}
	if err := p.introduce(ctx, w, t); err != nil {
		return err
	}
	for _, part := range contended {
		if !p.has(part.name) {
			continue
		}
		var all []match
		for _, n := range p.choose(part.sizes) {
			matches, err := p.contend(ctx, t, part.setting(p, n), p.rivals)
			if err != nil {
				return err
			}
			all = append(all, matches...)
		}
		trips := roundTrips(all)
		for i := range all {
			all[i].trip = trips[all[i].client]
		}
		if err := writeMatches(w, part, all, trips); err != nil {
			return err
		}
	}
	if p.has(idling) {
		all, err := p.idle(ctx)
		if err != nil {
			return err
		}
		if err := writeIdle(w, all); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", contendedLegend)
	return err
}

// roundTrips returns what a PING takes at its best, in µs, by client. One figure for all rounds and rivals, since
// it varies more than they do: by several times where the processors go to sleep between question and answer.
func roundTrips(matches []match) map[string]float64 {
	best := map[string]float64{}
	for _, m := range matches {
		for _, s := range m.scores {
			best[m.client] = min(cmp.Or(best[m.client], s.trip), s.trip)
		}
	}
	return best
}

// choose returns the sizes asked for, or else a part's own.
func (p plan) choose(sizes []int) []int {
	if len(p.sizes) > 0 {
		return p.sizes
	}
	return sizes
}
