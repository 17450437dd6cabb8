package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// plan is what to measure and how.
type plan struct {
	args      []string // of the command line
	parts     []string
	rivals    []rival
	takers    []takerEntry
	sizes     []int // empty for each part's own
	locks     []int // how many are held
	processes int

	rounds   int           // 0 for each part's own
	duration time.Duration // likewise
	holding  time.Duration // how long locks that are held are watched
	idling   time.Duration
	settle   time.Duration // how long waiters wait before their queue is measured: till they make their longest pauses
	pool     int

	from, md, json, charts string // files and a directory, or empty
}

// parsePlan reads the command line.
func parsePlan(flags *flag.FlagSet, args []string) (plan, error) {
	p := plan{args: args, parts: []string{uncontended}, rivals: rivals, takers: takers,
		locks: []int{1000, 10_000, 50_000}, holding: heldFor, settle: 500 * time.Millisecond}
	flags.Func("parts", "comma-separated tables: "+strings.Join(partNames(), ", ")+", "+contended+
		" for those in which somebody waits, or "+all+" (default "+uncontended+")", func(s string) (err error) {
		p.parts, err = parseParts(s)
		return err
	})
	flags.Func("only", "comma-separated names of those to measure under contention (default all)", func(s string) (err error) {
		p.rivals, err = choose(rivals, strings.Split(s, ","))
		return err
	})
	flags.Func("sizes", "comma-separated numbers of goroutines under contention (default each table's own)", func(s string) (err error) {
		p.sizes, err = parseNumbers(s)
		return err
	})
	flags.Func("locks", "comma-separated numbers of locks that are held (default 1000,10000,50000)", func(s string) (err error) {
		p.locks, err = parseNumbers(s)
		return err
	})
	flags.IntVar(&p.processes, "processes", 8, "how many processes contend in the table of that name")
	flags.IntVar(&p.rounds, "rounds", 0, "how often each is measured, for the medians (default each table's own)")
	flags.DurationVar(&p.duration, "duration", 0, "how long one measurement takes (default each table's own)")
	flags.DurationVar(&p.idling, "idle", 4*time.Second, "how long idle waiters are watched")
	flags.IntVar(&p.pool, "pool", 64, "connections of each go-redis client, except where a table says; 0 for go-redis' default")
	flags.StringVar(&p.from, "from", "", "measure nothing, but read what was written with -json")
	flags.StringVar(&p.md, "md", "", "a file for the tables, which go to standard output too")
	flags.StringVar(&p.json, "json", "", "a file for all figures")
	flags.StringVar(&p.charts, "charts", "", "a directory for charts, in SVG")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	return p, p.check()
}

func (p plan) check() error {
	switch {
	case p.rounds < 0 || p.duration < 0 || p.pool < 0 || p.processes < 1:
		return errors.New("want no negative -rounds, -duration and -pool, and one of the -processes at least")
	case p.idling <= 0 || p.idling > lease/2: // some rivals do not renew
		return fmt.Errorf("want an -idle above 0 and up to %v", lease/2)
	}
	return nil
}

// parseNumbers reads a list with commas.
func parseNumbers(list string) (all []int, err error) {
	for f := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of them", f)
		}
		all = append(all, n)
	}
	return all, nil
}

// contentionRound is long enough for thousands of hand-overs.
const contentionRound = 500 * time.Millisecond
