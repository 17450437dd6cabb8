package main

import "time"

// now is the time in ns since 1970, read from the monotonic clock: one that all processes of a machine share,
// up to how exactly each of them knows its own start, which is far below a µs.
func now() int64 { return began.wall + int64(time.Since(began.at)) }

var began = synchronise()

type instant struct {
	at   time.Time
	wall int64 // of the same moment, ns since 1970
}

// synchronise reads both clocks at once. Go reads the wall clock first, so that an interruption in between makes the
// start look too early: the latest of many readings is the best.
func synchronise() instant {
	best := instant{at: time.Now()}
	for range 100 {
		if t := time.Now(); t.UnixNano()-int64(t.Sub(best.at)) > best.wall {
			best.wall = t.UnixNano() - int64(t.Sub(best.at))
		}
	}
	return best
}
