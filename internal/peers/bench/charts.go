package main

// charts are what a reader asks first.
var charts = []chart{
	{
		file: "uncontended.svg", part: uncontended, value: "cycles/s", groups: []string{"n", "connections"},
		title: "A lock that nobody else wants", unit: "acquire-release cycles per second",
		group: "goroutines, each with its own key: %s; connections: %s",
	},
	{
		file: "hot-key.svg", part: "goroutines", value: "hand-overs/s", groups: []string{"n"}, only: []string{"16", "64", "256"},
		title: "A hot key in one process", unit: "hand-overs per second",
		group: "goroutines: %s",
	},
	{
		file: "hot-key-wait.svg", part: "goroutines", value: "longest wait ms", groups: []string{"n"}, only: []string{"16", "64", "256"},
		title: "A hot key in one process: the longest wait", unit: "ms", less: true,
		group: "goroutines: %s",
	},
	{
		file: "processes.svg", part: "processes", value: "hand-overs/s", groups: []string{"n"},
		title: "A hot key among 8 processes", unit: "hand-overs per second",
		group: "goroutines in each process: %s",
	},
	{
		file: "held.svg", part: "held", value: "CPU %", groups: []string{"locks"},
		title: "Locks that are held and renewed", unit: "% of one processor, client and server together", less: true,
		group: "%s locks",
	},
	{
		file: "redlock.svg", part: "redlock", value: "lock p50 µs", groups: []string{"servers", "n"},
		only:  []string{"all healthy 1", "one 50 ms late 1", "two stopped 1", "three stopped 1"},
		title: "A lock on five servers", unit: "median time to take it (or to learn that it cannot be had), µs", less: true,
		group: "%s; goroutines: %s",
	},
}
