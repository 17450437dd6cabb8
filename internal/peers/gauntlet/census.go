package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
)

var (
	lastCensus atomic.Int64
	// profiled is one entry of the profile: how many goroutines, and perhaps their labels.
	profiled = regexp.MustCompile(`(?m)^(\d+) @.*\n(?:# labels: (.*)\n)?`)
)

// census tells the goroutines that come of what count runs from those of scenarios beside it: goroutines inherit the
// labels of the one that starts them.
func census() (count func(func()), counted func() int) {
	name := fmt.Sprint("census-", lastCensus.Add(1), "-")
	count = func(fn func()) {
		pprof.Do(context.Background(), pprof.Labels("gauntlet", name), func(context.Context) { fn() })
	}
	counted = func() int {
		var profile bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&profile, 1) // a buffer takes all
		n := 0
		for _, entry := range profiled.FindAllSubmatch(profile.Bytes(), -1) {
			if bytes.Contains(entry[2], []byte(name)) {
				some, _ := strconv.Atoi(string(entry[1])) // digits
				n += some
			}
		}
		return n
	}
	return count, counted
}
