package main

import (
	"fmt"
	"math"
	"strings"
)

// verdict is one target of holdfast's, and what was measured.
type verdict struct {
	Target string  `json:"target"`
	Got    float64 `json:"got"`
	Met    bool    `json:"met"`
}

// goal is a target. got returns the figure, not a number where it was not measured.
type goal struct {
	about string
	least bool // the figure has to reach the bound, not to stay within it
	bound float64
	got   func(r report) float64
}

var goals = []goal{
	soloGoal(1, 0.92), soloGoal(8, 0.9), soloGoal(64, 1.8), soloPeerGoal(1), soloPeerGoal(64),
	costGoal(1, 1.25), costGoal(8, 1.1), costGoal(64, 0.9),
	{"uncontended, n = 1: allocations of a cycle", false, 12, func(r report) float64 { return of(r, uncontended, "allocs", math.Max, match("n", "1")) }},
	{"uncontended, n = 1: bytes of a cycle", false, 1024, func(r report) float64 { return of(r, uncontended, "bytes", math.Max, match("n", "1")) }},
	{"uncontended, n = 1: commands in scripts of a cycle", false, 7, func(r report) float64 { return of(r, uncontended, "in scripts", math.Max, match("n", "1")) }},
	farGoal("far, n = 1", 0.98, match("n", "1")), farGoal("far, n = 8", 1, match("n", "8")),
	farGoal("far, n = 64, default connections", 1.9, match("n", "64"), byDefault),
	farGoal("far, n = 64, a connection for each", 1.4, match("n", "64"), match("connections", "64")),
	{"far, n = 1, released in the background: the caller's time of a cycle, of the floor's", false, 0.55, func(r report) float64 {
		return inWorst(math.Max, func(c condition) float64 {
			return figures(r, "far", "p50 µs", nil, is(background), match("n", "1"), c) / figures(r, "far", "p50 µs", nil, is(bare), match("n", "1"), c)
		})
	}},
	mixGoal("20", 2.7), mixGoal("64", 1.75), mixWaitGoal("20"), mixWaitGoal("64"),
	{"a try that fails: commands", false, 1, func(r report) float64 { return of(r, "refused", "commands", nil) }},
	hotGoal("16", 50), hotGoal("64", 65), hotGoal("256", 50),
	waitGoal("16"), waitGoal("64"), waitGoal("256"),
	{"hot key, one process, 16 to 256: commands for each hand-over", false, 0.1, func(r report) float64 {
		return of(r, "goroutines", "commands", math.Max, oneOf("n", "16", "64", "256"))
	}},
	{"hot key, 8 processes: hand-overs/s, of the best peer's", true, 5, func(r report) float64 {
		return against(r, "processes", "ratio", math.Max, isPeer)
	}},
	{"hot key, 8 processes: commands for each hand-over", false, 2, func(r report) float64 { return of(r, "processes", "commands", math.Max) }},
	{"hot key, 8 processes: Jain of processes", true, 0.98, func(r report) float64 { return of(r, "processes", "Jain of processes", math.Min) }},
	{"50,000 held: heap bytes of each", false, 0.9 * 1024, func(r report) float64 { return of(r, "held", "heap bytes", math.Max, match("locks", "50000")) }},
	{"50,000 held: goroutines of all", false, 500, func(r report) float64 { return of(r, "held", "goroutines", math.Max, match("locks", "50000")) }},
	{"50,000 held: client CPU, of a goroutine and a PEXPIRE for each", false, 1. / 8, func(r report) float64 {
		return against(r, "held", "client CPU %", math.Max, is(timer), match("locks", "50000"))
	}},
	{"50,000 held: client and server CPU, of a goroutine and a PEXPIRE for each", false, 1. / 8, func(r report) float64 {
		return against(r, "held", "CPU %", math.Max, is(timer), match("locks", "50000"))
	}},
	shareGoal("beside a burst of another: median ms until served", "burst", "p50 ms", 20),
	shareGoal("beside a burst of another: ms until served, at worst", "burst", "longest ms", 45),
	shareGoal("a burst: time, of the ideal", "burst", "burst/ideal", 1.05),
	shareGoal("1000, 100 and 1 callers: % off equal parts", "loops", "off %", 2, match("callers", loops[0].label)),
	{"shares, 1000, 100 and 1 callers: grants/s, of those without names", true, 0.95, func(r report) float64 {
		return of(r, "shares: loops", "ratio", math.Min, match("callers", loops[0].label))
	}},
	shareGoal("weights 1, 2 and 4: % off their parts", "loops", "off %", 2, match("callers", loops[1].label)),
	lineGoal("look"), lineGoal("leave"),
	quorumGoal("all healthy", 1.4), quorumGoal("one 50 ms late", 1.4), quorumGoal("two stopped", 1.4), quorumGoal("all far", 1.1),
	{"RedLock, three stopped, with a node timeout of 1000 ms: ms until the refusal", false, 1050, func(r report) float64 {
		return of(r, "redlock", "lock p99 µs", math.Max, match("servers", "three stopped")) / 1e3
	}},
	{"in bulk, 2 and 4 x the capacity offered: served, of the capacity", true, 0.9, func(r report) float64 {
		return of(r, "bulk: overload", "of capacity", math.Min, oneOf("load %", "200", "400"))
	}},
	bulkGoal("2 and 4 x the capacity offered: p99 of what is served, ms", "overload", "p99 ms", 1000, oneOf("load %", "200", "400")),
	bulkGoal("2 and 4 x the capacity offered: memory, of what it was a second before", "overload", "growth of RSS", 1.2, oneOf("load %", "200", "400")),
	bulkGoal("stops: errors from the second second on", "stop", "failed after 1 s", 0),
	bulkGoal("stops: p99 from 2 s on, of that before", "stop", "p99 after/before", 2),
	bulkGoal("stops: goroutines beside those of the callers, of 2 x pool + 50", "stop", "of 2 x pool + 50", 1),
	bulkGoal("stops: memory, of what is allowed", "stop", "of RSS allowed", 1),
	bulkGoal("hangs: goroutines beside those of the callers, of 2 x pool + 50", "hang", "of 2 x pool + 50", 1),
	bulkGoal("hangs: memory, of what is allowed", "hang", "of RSS allowed", 1),
	bulkGoal("after a hang: commands until quiet, of those by hand", "hang", "of by hand", 2),
	bulkGoal("hostile messages: goroutines more", "flood", "goroutines more", 10),
	bulkGoal("hostile messages: MB more", "flood", "RSS MB more", 10),
	bulkGoal("hostile messages: keys touched", "flood", "keys touched", 0),
	bulkGoal("hostile messages: ms until the waiter is served", "flood", "served after ms", 100),
	bulkGoal("a pool that the application has used up: locks lost", "usedup", "lost", 0),
	taskGoal("60 of one key at once: time, of the ideal", "burst", "time/ideal", false, 1.1),
	taskGoal("one that meets a request of 100 ms: median ms until it starts", "request", "p50 ms", false, 200),
	taskGoal("one that meets a request of 100 ms: ms until it starts, at worst", "request", "longest ms", false, 2000),
	taskGoal("10,000 and 40,000 of one key: runs, of the ideal", "backlog", "runs/ideal", true, 0.95),
	taskGoal("10,000 and 40,000 of one key: median ms until others start", "backlog", "p50 ms", false, 50),
	taskGoal("10,000 and 40,000 of one key: p99 of ms until others start", "backlog", "p99 ms", false, 500),
	taskGoal("10,000 and 40,000 of one key: deferrals of each", "backlog", "deferrals", false, 1.2),
	taskGoal("10,000 and 40,000 of one key: ms of Redis' processor time for each", "backlog", "Redis ms", false, 0.1),
}

// Goals are for both setups of the client, and what counts is the worse one.

func soloGoal(n int, least float64) goal {
	return goal{fmt.Sprintf("uncontended, n = %d, default connections: cycles/s, of the floor's", n), true, least, func(r report) float64 {
		return of(r, uncontended, "ratio", math.Min, match("n", fmt.Sprint(n)), byDefault)
	}}
}

func soloPeerGoal(n int) goal {
	return goal{fmt.Sprintf("uncontended, n = %d, default connections: cycles/s, of the best peer's", n), true, 1, func(r report) float64 {
		return inWorst(math.Min, func(c condition) float64 {
			return against(r, uncontended, "ratio", math.Max, isPeer, match("n", fmt.Sprint(n)), byDefault, c)
		})
	}}
}

func costGoal(n int, most float64) goal {
	return goal{fmt.Sprintf("uncontended, n = %d, default connections: processor time of client and server, of the floor's", n), false, most, func(r report) float64 {
		return of(r, uncontended, "CPU ratio", math.Max, match("n", fmt.Sprint(n)), byDefault)
	}}
}

func farGoal(about string, least float64, which ...condition) goal {
	return goal{about + ": cycles/s, of the floor's", true, least, func(r report) float64 { return of(r, "far", "ratio", math.Min, which...) }}
}

func mixGoal(connections string, least float64) goal {
	return goal{"a service's mix, " + connections + " connections: cycles/s, of polling", true, least, func(r report) float64 {
		return of(r, "mix", "ratio", math.Min, match("connections", connections))
	}}
}

func mixWaitGoal(connections string) goal {
	return goal{"a service's mix, " + connections + " connections: p99 of an acquire, of the best peer's", false, 0.5, func(r report) float64 {
		return inWorst(math.Max, func(c condition) float64 {
			return against(r, "mix", "p99 ms", math.Min, isPeer, match("connections", connections), c)
		})
	}}
}

// bulkGoal is for the worst of all rows of a table of the part bulk.
func bulkGoal(about, scene, value string, most float64, which ...condition) goal {
	return goal{"in bulk, " + about, false, most, func(r report) float64 { return of(r, "bulk: "+scene, value, math.Max, which...) }}
}

// shareGoal is for the worst of all rows of a table of the part shares.
func shareGoal(about, table, value string, most float64, which ...condition) goal {
	return goal{"shares, " + about, false, most, func(r report) float64 { return of(r, "shares: "+table, value, math.Max, which...) }}
}

func lineGoal(act string) goal {
	return goal{"a line of 10000: Redis' time for a " + act + ", of that with 10", false, 1.3, func(r report) float64 {
		return figures(r, "shares: line", act+" ratio", math.Max, match("waiters", "10000"))
	}}
}

// taskGoal is for the worst of all numbers of servers and tasks.
func taskGoal(about, load, value string, least bool, bound float64) goal {
	worst := math.Max
	if least {
		worst = math.Min
	}
	return goal{"tasks, " + about, least, bound, func(r report) float64 { return of(r, "tasks", value, worst, match("load", load)) }}
}

func hotGoal(n string, least float64) goal {
	return goal{"hot key, one process, " + n + " goroutines: hand-overs/s, of the best peer's", true, least, func(r report) float64 {
		return against(r, "goroutines", "ratio", math.Max, isPeer, match("n", n))
	}}
}

func waitGoal(n string) goal {
	return goal{"hot key, one process, " + n + " goroutines: longest wait, of the best peer's", false, 0.1, func(r report) float64 {
		return against(r, "goroutines", "longest wait ms", math.Min, isPeer, match("n", n))
	}}
}

func quorumGoal(situation string, most float64) goal {
	return goal{"RedLock, " + situation + ": median time to lock, of the floor's", false, most, func(r report) float64 {
		return of(r, "redlock", "lock ratio", math.Max, match("servers", situation))
	}}
}

// condition says which rows are meant.
type condition func(t table, row []any) bool

func match(label, text string) condition { return oneOf(label, text) }

func oneOf(label string, texts ...string) condition {
	return func(t table, row []any) bool {
		for _, text := range texts {
			if t.text(row, label) == text {
				return true
			}
		}
		return false
	}
}

func is(name string) condition { return match("", name) }

// byDefault is go-redis' number of connections.
func byDefault(t table, row []any) bool {
	return strings.Contains(t.text(row, "connections"), "default")
}

// through holds for the rows of one setup of the client, and for all of a table that does not tell setups apart.
func through(client string) condition {
	return func(t table, row []any) bool { return t.column("client") < 0 || t.text(row, "client") == client }
}

// inWorst is the worse figure of both setups of the client.
func inWorst(worse func(a, b float64) float64, figure func(condition) float64) float64 {
	worst := math.NaN()
	for _, c := range clients {
		v := figure(through(c.name))
		if math.IsNaN(worst) {
			worst = v
		} else if !math.IsNaN(v) {
			worst = worse(worst, v)
		}
	}
	return worst
}

// isPeer holds for other libraries that did what they were asked to.
func isPeer(t table, row []any) bool {
	name := t.text(row, "")
	return name != bare && name != polling && !strings.HasPrefix(name, us) && !(t.get(row, "clashes") > 0)
}

// figures picks one column of the rows that fulfil all conditions, and of several the one that best prefers.
func figures(r report, part, value string, best func(a, b float64) float64, conditions ...condition) float64 {
	t, found := r.table(part), math.NaN()
rows:
	for _, row := range t.Rows {
		for _, c := range conditions {
			if !c(t, row) {
				continue rows
			}
		}
		switch v := t.get(row, value); {
		case math.IsNaN(v):
		case math.IsNaN(found) || best == nil:
			found = v
		default:
			found = best(found, v)
		}
	}
	return found
}

// of is a figure of holdfast's, its worst of several.
func of(r report, part, value string, worst func(a, b float64) float64, conditions ...condition) float64 {
	return figures(r, part, value, worst, append([]condition{is(us)}, conditions...)...)
}

// against is the ratio of the figures of holdfast and of the best one that others names. Those of the column ratio were compared
// round by round with the same first line before.
func against(r report, part, value string, best func(a, b float64) float64, others condition, conditions ...condition) float64 {
	return of(r, part, value, best, conditions...) / figures(r, part, value, best, append([]condition{others}, conditions...)...)
}

// judgeTargets compares what was measured with the goals.
func judgeTargets(r report) (all []verdict) {
	for _, g := range goals {
		got := g.got(r)
		if math.IsNaN(got) {
			continue
		}
		bound := "at most"
		if g.least {
			bound = "at least"
		}
		met := g.least && got >= g.bound || !g.least && got <= g.bound
		all = append(all, verdict{fmt.Sprintf("%s: %s %g", g.about, bound, g.bound), got, met})
	}
	return all
}

func verdictTable(all []verdict) table {
	t := table{Part: "targets", Title: "What holdfast set out for, and these figures say.",
		Heads: []head{{"", 0}, {"measured", 3}, {"met", 0}}}
	for _, v := range all {
		met := "no"
		if v.Met {
			met = "yes"
		}
		t.Rows = append(t.Rows, []any{v.Target, v.Got, met})
	}
	return t
}
