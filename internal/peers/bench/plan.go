package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
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
	idling   time.Duration // half a lease at most, as some rivals do not renew
	settle   time.Duration // how long waiters wait before their queue is measured: till they make their longest pauses
	pool     int
	bulk     bulkPlan

	from, md, json, charts string // files and a directory, or empty
}

// parsePlan reads the command line.
func parsePlan(flags *flag.FlagSet, args []string) (plan, error) {
	p := plan{args: args, parts: []string{uncontended}, rivals: rivals, takers: takers,
		locks: []int{1000, 10_000, 50_000}, processes: 8, holding: heldFor, idling: 4 * time.Second, settle: 500 * time.Millisecond, pool: 64, bulk: newBulkPlan()}
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
	flags.IntVar(&p.rounds, "rounds", 0, "how often each is measured, for the medians (default each table's own)")
	flags.DurationVar(&p.duration, "duration", 0, "how long one measurement takes (default each table's own)")
	p.bulk.flags(flags)
	flags.StringVar(&p.from, "from", "", "measure nothing, but read what was written with -json")
	flags.StringVar(&p.md, "md", "", "a file for the tables, which go to standard output too")
	flags.StringVar(&p.json, "json", "", "a file for all figures")
	flags.StringVar(&p.charts, "charts", "", "a directory for charts, in SVG")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	if p.rounds < 0 || p.duration < 0 {
		return plan{}, errors.New("want no negative -rounds and -duration")
	}
	return p, nil
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

// flags are those of the part bulk.
func (b *bulkPlan) flags(flags *flag.FlagSet) {
	flags.Func("bulk", "comma-separated tables of the part bulk: "+strings.Join(sceneNames(), ", ")+" (default all)", func(s string) error {
		b.scenes = strings.Split(s, ",")
		for _, name := range b.scenes {
			if !slices.Contains(sceneNames(), name) {
				return fmt.Errorf("the part bulk has no table %q", name)
			}
		}
		return nil
	})
	flags.BoolVar(&b.everyone, "everyone", false, "in bulk, measure the peers in all loads, stops and hangs, and not only at 200 % of their capacity")
	numbers := func(to *[]int, name, usage string) {
		flags.Func(name, usage, func(s string) (err error) { *to, err = parseNumbers(s); return err })
	}
	durations := func(to *[]time.Duration, name, usage string) {
		flags.Func(name, usage, func(s string) (err error) { *to, err = parseDurations(s); return err })
	}
	numbers(&b.loads, "loads", "comma-separated steady loads, in % of the capacity (default 50,80,95,200,400)")
	numbers(&b.stopLoads, "stop-loads", "comma-separated loads of stops, in % of the capacity (default 80,95)")
	durations(&b.stops, "stops", "comma-separated times for which the server stops (default 80ms,2s)")
	durations(&b.hangs, "hangs", "comma-separated times for which the server hangs under calls that soon give up (default 10s)")
	durations(&b.ttls, "ttls", "comma-separated TTLs of locks while it hangs (default 15s)")
	flags.IntVar(&b.messages, "messages", b.messages, "how many hostile messages come")
	flags.DurationVar(&b.usedUp, "used-up", b.usedUp, "how long the application uses all connections")
}

// parseDurations reads a list with commas.
func parseDurations(list string) (all []time.Duration, err error) {
	for f := range strings.SplitSeq(list, ",") {
		d, err := time.ParseDuration(f)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%q is no time", f)
		}
		all = append(all, d)
	}
	return all, nil
}

// contentionRound is long enough for thousands of hand-overs.
const contentionRound = 500 * time.Millisecond
