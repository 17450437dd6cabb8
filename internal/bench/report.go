package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The columns of the parts under contention. Time is in the unit that its head names.
var (
	hottest = []column[match]{
		{"n", func(m match) string { return fmt.Sprint(m.goroutines) }},
		{"", func(m match) string { return m.name }},
		{"hand-overs/s", typical("%.0f", func(s score) float64 { return s.handOvers })},
		{"ratio", ratio},
	}
	latency = []column[match]{
		{"p50 µs", typical("%.1f", func(s score) float64 { return s.p50 })},
		{"PINGs", func(m match) string { return typical("%.1f", func(s score) float64 { return s.p50 / m.trip })(m) }},
		{"p99 µs", typical("%.0f", func(s score) float64 { return s.p99 })},
	}
	fairness = []column[match]{
		{"acquires/s", typical("%.0f", func(s score) float64 { return s.acquires })},
		{"longest wait ms", longest},
		{"Jain", typical("%.2f", func(s score) float64 { return s.fair })},
	}
	amongProcesses = []column[match]{
		{"Jain of processes", typical("%.2f", func(s score) float64 { return s.fairEach })},
		{"to another", typical("%.0f %%", func(s score) float64 { return 100 * s.abroad })},
	}
	price = []column[match]{
		{"commands", typical("%.2f", func(s score) float64 { return s.commands })},
		{"script µs", typical("%.1f", func(s score) float64 { return s.script })},
		{"failed", func(m match) string { return fmt.Sprint(m.total(func(s score) int { return s.failures })) }},
		{"clashes", func(m match) string { return fmt.Sprint(m.total(func(s score) int { return s.clashes })) }},
	}

	crowded   = slices.Concat(hottest, latency, fairness, price)
	severally = slices.Concat(hottest, latency, fairness, amongProcesses, price)
	served    = slices.Concat(hottest, latency, []column[match]{{"last after ms", longest}}, price)
)

var idleColumns = []column[quiet]{
	{"waiters", func(q quiet) string { return fmt.Sprint(q.goroutines) }},
	{"Lockers", func(q quiet) string { return fmt.Sprint(q.lockers) }},
	{"", func(q quiet) string { return q.name }},
	{"commands/s", func(q quiet) string { return fmt.Sprintf("%.1f", q.commands) }},
	{"for each waiter", func(q quiet) string { return fmt.Sprintf("%.2f", q.commands/float64(q.goroutines)) }},
	{"failed", func(q quiet) string { return fmt.Sprint(q.failures) }},
	{"clashes", func(q quiet) string { return fmt.Sprint(q.clashes) }},
}

var contendedLegend = "A hand-over is an acquisition by another goroutine than the last holder's (with one goroutine: any); " +
	"its latency runs from before the release until the next holder has the lock. ratio: of hand-overs/s to the first " +
	"line's. PINGs: p50 in idle round trips over the same client. longest wait: of all rounds, also of those that were " +
	"still waiting at the end. Jain: fairness of the goroutines' acquisitions, 1 when all have as many and 1/n when one " +
	"has all. to another: hand-overs to another process. commands: sent by the clients, for each hand-over. script µs: " +
	"the server's time for an EVALSHA. failed: acquires that gave up, releases that failed, and waits in a line that had " +
	"not ended " + fmt.Sprint(stranded) + " after the holder left. clashes: signs of two holders at a time. –: too few " +
	"hand-overs."

// typical is the median over the rounds.
func typical(format string, figure func(score) float64) func(match) string {
	return func(m match) string {
		values := make([]float64, len(m.scores))
		for i, s := range m.scores {
			values[i] = figure(s)
		}
		return number(format, values)
	}
}

// ratio compares round by round, like row.ratio.
func ratio(m match) string {
	values := make([]float64, len(m.scores))
	for i, s := range m.scores {
		values[i] = s.handOvers / m.base[i].handOvers
	}
	return number("%.2f", values)
}

func number(format string, values []float64) string {
	m := median(values)
	if math.IsNaN(m) || math.IsInf(m, 0) {
		return "–"
	}
	return fmt.Sprintf(format, m)
}

func longest(m match) string {
	worst := 0.0
	for _, s := range m.scores {
		worst = max(worst, s.worst)
	}
	return fmt.Sprintf("%.1f", worst/1e3)
}

func (m match) total(figure func(score) int) int {
	sum := 0
	for _, s := range m.scores {
		sum += figure(s)
	}
	return sum
}

// introduce says what was measured under contention and on what.
func (p plan) introduce(ctx context.Context, w io.Writer, t *target) error {
	on, err := environment(ctx, t, p)
	if err != nil {
		return err
	}
	others := ""
	for _, module := range peers {
		others += ", " + module + " " + version(module)
	}
	_, err = fmt.Fprintf(w, "`go run .%s`: contention for one key; medians of %d rounds of %v; %s%s.\n",
		p.line(), p.rounds, p.duration, on, others)
	return err
}

// line is the arguments as the shell took them.
func (p plan) line() (args string) {
	for _, arg := range p.args {
		if strings.Contains(arg, " ") {
			arg = strconv.Quote(arg)
		}
		args += " " + arg
	}
	return args
}

func writeMatches(w io.Writer, part part, matches []match, trips map[string]float64) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s:\n\n", part.title)
	writeTable(&b, part.columns, matches)
	b.WriteString("\nA PING over an idle connection:")
	for i, client := range slices.Sorted(maps.Keys(trips)) {
		fmt.Fprintf(&b, "%s %.0f µs by %s", strings.Repeat(",", min(i, 1)), trips[client], client)
	}
	b.WriteString(".\n")
	for _, m := range matches {
		for _, s := range m.scores {
			complain(&b, m.name, m.goroutines, s.failures, s.reason)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeIdle(w io.Writer, all []quiet) error {
	var b strings.Builder
	b.WriteString("\nWaiters behind a holder elsewhere that stays:\n\n")
	writeTable(&b, idleColumns, all)
	for _, q := range all {
		complain(&b, q.name, q.goroutines, q.failures, q.reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func complain(b *strings.Builder, name string, n, failures int, reason string) {
	if failures > 0 {
		fmt.Fprintf(b, "\n%s failed %d times with n = %d: %s\n", name, failures, n, cmp.Or(reason, "no reason given"))
	}
}
