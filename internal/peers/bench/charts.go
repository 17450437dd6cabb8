package main

// charts are those of the README.
var charts = []chart{
	{
		file: "hot-key.svg", part: "goroutines", value: "hand-overs/s", groups: []string{"n"}, only: []string{"16", "64", "256"},
		title: "A hot key in one process", unit: "hand-overs per second",
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
}
