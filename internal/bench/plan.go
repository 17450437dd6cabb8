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
	processes int

	rounds   int           // 0 for a default, which is another with contention
	duration time.Duration // likewise
	idling   time.Duration
	settle   time.Duration // how long waiters wait before their queue is measured: till they make their longest pauses
	pool     int
}

// parsePlan reads the command line.
func parsePlan(flags *flag.FlagSet, args []string) (plan, error) {
	p := plan{args: args, parts: []string{uncontended}, rivals: rivals, takers: takers, settle: 500 * time.Millisecond}
	flags.Func("parts", "comma-separated tables: "+strings.Join(partNames(), ", ")+", or "+allContended+
		" for those in which somebody waits (default "+uncontended+")", func(s string) (err error) {
		p.parts, err = parseParts(s)
		return err
	})
	flags.Func("only", "comma-separated names of those to measure under contention (default all)", func(s string) (err error) {
		p.rivals, err = choose(rivals, strings.Split(s, ","))
		return err
	})
	flags.Func("sizes", "comma-separated numbers of goroutines under contention (default each table's own)", func(s string) error {
		p.sizes = nil
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(f)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of goroutines", f)
			}
			p.sizes = append(p.sizes, n)
		}
		return nil
	})
	flags.IntVar(&p.processes, "processes", 8, "how many processes contend in the table of that name")
	flags.IntVar(&p.rounds, "rounds", 0, "how often each is measured, for the medians (default 5, under contention 3)")
	flags.DurationVar(&p.duration, "duration", 0, "how long one measurement takes (default 1s, under contention 400ms)")
	flags.DurationVar(&p.idling, "idle", 4*time.Second, "how long idle waiters are watched")
	flags.IntVar(&p.pool, "pool", 64, "connections of the go-redis client; 0 for its default")
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

// filled returns the plan with the given defaults.
func (p plan) filled(rounds int, d time.Duration) plan {
	if p.rounds == 0 {
		p.rounds = rounds
	}
	if p.duration == 0 {
		p.duration = d
	}
	return p
}

func (p plan) has(part string) bool { return slices.Contains(p.parts, part) }
