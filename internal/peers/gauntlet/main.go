// Command gauntlet runs lock libraries through the failures that such libraries are known for, on real redis-servers
// and over connections that break on purpose. It prints a table in Markdown with what was observed.
//
//	GOWORK=off go run .                                # everything
//	GOWORK=off go run . -only redsync -match redlock   # some of it
//
// A library of others whose module cannot be downloaded is left out, and named, with its build tag: without_redislock,
// without_redsync or without_rueidis; and with without_asynq the scenarios of adapters.
//
// Of locks that several hold together, what runs beside holdfast are the algorithms of Redisson and redis-semaphore, which have no
// library in Go, and a limiter as services write it by hand; see package peers.
//
// Every library is set up as its documentation recommends, and where that leaves a choice, by the one that does best
// here; see the file peers.go. Each scenario runs several times: a library is said to fail only where it
// failed every time. The tests of this package hold holdfast to all scenarios, and show for each of them that a
// lock with that mistake fails it; the other libraries never make a test fail.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

func main() {
	if err := start(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gauntlet:", err)
		os.Exit(1)
	}
}

func start(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("gauntlet", flag.ContinueOnError)
	times := flags.Int("times", 5, "how often each scenario runs")
	atOnce := flags.Int("parallel", 6, "how many runs at a time")
	only := flags.String("only", "", "libraries, by name, separated by commas")
	match := flags.String("match", "", "a regular expression for names of scenarios")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *times < 1 || *atOnce < 1 {
		return fmt.Errorf("-times %d, -parallel %d: both must be at least 1", *times, *atOnce)
	}
	pattern, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	p := plan{times: *times, atOnce: *atOnce, patience: 6 * time.Second}
	for _, s := range scenarios {
		if pattern.MatchString(s.name) {
			p.scenarios = append(p.scenarios, s)
		}
	}
	if p.libraries, err = choose(*only); err != nil {
		return err
	}
	r, err := p.run()
	if err != nil {
		return err
	}
	return r.writeMarkdown(w)
}

// choose returns the libraries of a list of names, or all.
func choose(names string) ([]library, error) {
	if names == "" {
		return libraries(), nil
	}
	var chosen []library
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, l := range libraries() {
			if l.name == name {
				chosen, found = append(chosen, l), true
			}
		}
		for _, lib := range peers.Libraries() {
			if lib.Name == name && !lib.Present() {
				return nil, fmt.Errorf("this program was built without %s, with -tags %s", name, lib.Tag)
			}
		}
		if !found {
			return nil, fmt.Errorf("no library is called %q", name)
		}
	}
	return chosen, nil
}
