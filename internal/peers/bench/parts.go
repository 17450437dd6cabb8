package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// part is one table of the report, or several.
type part struct {
	name     string
	rounds   int           // where the command line does not say
	duration time.Duration // likewise
	measure  func(p plan, ctx context.Context, s *server) (table, error)
	several  func(p plan, ctx context.Context, each func(table) error) error // in place of measure
}

const uncontended, contended, all = "uncontended", "contended", "all"

// parts are in the order of the report.
var parts = slices.Concat(
	[]part{
		{name: uncontended, rounds: 7, duration: 300 * time.Millisecond, measure: plan.cycles},
		{name: "far", rounds: 5, duration: 300 * time.Millisecond, measure: plan.far},
		{name: "mix", rounds: 3, duration: time.Second, measure: plan.mix},
		{name: "refused", rounds: 3, duration: 100 * time.Millisecond, measure: plan.refused},
	},
	crowdParts(),
	[]part{
		{name: "idle", rounds: 1, duration: 0, measure: plan.idle},
		{name: "limits", rounds: 3, duration: time.Second, measure: plan.limits}, // by then a mutex has been with each of 8 Lockers
		{name: "shares", rounds: 5, duration: time.Second, several: plan.inShares},
		{name: "redlock", rounds: 3, duration: 400 * time.Millisecond, measure: plan.redlock},
		{name: "held", rounds: 1, duration: 0, measure: plan.held},
		{name: "guard", rounds: 1, duration: 0, measure: plan.guard},
		{name: "bulk", rounds: 1, duration: 2 * time.Second, several: plan.inBulk},
		{name: "tasks", rounds: 1, duration: 45 * time.Second, measure: plan.tasks},
	})

func partNames() (names []string) {
	for _, part := range parts {
		names = append(names, part.name)
	}
	return names
}

// queued are the names of the parts in which somebody waits.
func queued() (names []string) {
	for _, c := range crowds {
		names = append(names, c.name)
	}
	return append(names, "idle")
}

// parseParts returns the names in a list with commas.
func parseParts(list string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		switch known := partNames(); {
		case name == all:
			names = append(names, known...)
		case name == contended:
			names = append(names, queued()...)
		case slices.Contains(known, name):
			names = append(names, name)
		default:
			return nil, fmt.Errorf("no part is called %q; there are %s, %s for those in which somebody waits, and %s",
				name, strings.Join(known, ", "), contended, all)
		}
	}
	return names, nil
}

// run measures the parts of the plan, and hands each table over as soon as it is there.
func (p plan) run(ctx context.Context, each func(table) error) error {
	for _, part := range parts {
		if !slices.Contains(p.parts, part.name) {
			continue
		}
		own := p
		if p.rounds == 0 {
			own.rounds = part.rounds
		}
		if p.duration == 0 {
			own.duration = part.duration
		}
		if err := part.run(own, ctx, each); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

func (part part) run(p plan, ctx context.Context, each func(table) error) error {
	if part.several != nil {
		return part.several(p, ctx, each)
	}
	s, err := startServer()
	if err != nil {
		return err
	}
	t, err := part.measure(p, ctx, s)
	s.Close()
	if err != nil {
		return err
	}
	t.Part = part.name
	return each(t)
}
