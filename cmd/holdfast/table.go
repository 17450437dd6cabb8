package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// The columns of the table.
const (
	keyColumn = iota
	stateColumn
	holderColumn
	tokenColumn
	sinceColumn
	leftColumn
	waitingColumn
)

// cells returns the table of ls and watch, with its head.
func cells(all []row) [][]string {
	table := [][]string{{"KEY", "STATE", "HOLDER", "TOKEN", "SINCE", "LEFT", "WAITING"}}
	for _, r := range all {
		table = append(table, []string{
			r.name(), r.State, r.holder() + r.members(), r.token(), clock(r.since(), time.Now()), r.left(), r.waiting() + r.line(),
		})
	}
	return table
}

// name is the key, and of several masters that which is asked.
func (r *row) name() string {
	if r.Master == "" {
		return printable(r.Key)
	}
	return printable(r.Key) + " on " + r.Master
}

// members names those that hold a lock together.
func (r *row) members() string {
	var labels []string
	for _, m := range r.Members {
		labels = append(labels, m.Label)
	}
	return names(labels)
}

// waiting returns how many wait, and by how many names they take turns.
func (r *row) waiting() string {
	if r.Shares == 0 {
		return strconv.Itoa(r.Waiting)
	}
	return fmt.Sprintf("%d of %d names", r.Waiting, r.Shares)
}

// line names the first waiters, except those that are gone.
func (r *row) line() string {
	var labels []string
	for _, w := range r.Line {
		if !w.Gone {
			labels = append(labels, w.Label)
		}
	}
	return names(labels)
}

const mostNames = 5

// names lists labels, each once. Holders and waiters without a label appear only in the number before the list.
func names(labels []string) string {
	var all []string
	for _, label := range labels {
		if label != "" && !slices.Contains(all, printable(label)) {
			all = append(all, printable(label))
		}
	}
	if len(all) == 0 {
		return ""
	}
	if len(all) > mostNames {
		all = append(all[:mostNames], "...")
	}
	return ": " + strings.Join(all, ", ")
}

// clock formats a moment in local time: the time if it is today, else the date.
func clock(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case t.Local().Format(time.DateOnly) == now.Local().Format(time.DateOnly):
		return t.Local().Format(time.TimeOnly)
	}
	return t.Local().Format(time.DateOnly)
}

func writeTable(w io.Writer, table [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, line := range table {
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	return t.Flush()
}

const (
	gap      = 2 // between columns
	leastCut = 8 // the least width of a column that is cut
)

// fit makes a table as narrow as a terminal. It leaves out the tokens first, and then since when a lock is held; show prints
// both. After that it cuts the longest keys and names. A character counts as one column.
func fit(table [][]string, columns int) [][]string {
	shown := []int{keyColumn, stateColumn, holderColumn, tokenColumn, sinceColumn, leftColumn, waitingColumn}
	widths := make([]int, len(shown))
	for _, line := range table {
		for c, cell := range line {
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	tooWide := func() bool {
		sum := -gap
		for _, c := range shown {
			sum += widths[c] + gap
		}
		return sum > columns
	}
	for _, drop := range []int{tokenColumn, sinceColumn} {
		if tooWide() {
			shown = slices.DeleteFunc(shown, func(c int) bool { return c == drop })
		}
	}
	for tooWide() {
		widest := keyColumn
		for _, c := range []int{holderColumn, waitingColumn} {
			if widths[c] > widths[widest] {
				widest = c
			}
		}
		if widths[widest] <= leastCut {
			break // no terminal is that narrow
		}
		widths[widest]--
	}
	var fitted [][]string
	for _, line := range table {
		var cut []string
		for _, c := range shown {
			if c == keyColumn {
				cut = append(cut, shortenWithin(line[c], widths[c]))
			} else {
				cut = append(cut, shorten(line[c], widths[c]))
			}
		}
		fitted = append(fitted, cut)
	}
	return fitted
}

// shortenWithin cuts s to n characters, but keeps its end, where keys differ.
func shortenWithin(s string, n int) string {
	all := []rune(s)
	if len(all) <= n {
		return s
	}
	tail := n * 2 / 3
	return string(all[:max(0, n-1-tail)]) + "\u2026" + string(all[len(all)-tail:])
}

// shorten cuts s to n characters.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(0, n-1)]) + "\u2026"
}
