package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

func (l *line) addWaits(t *tally) {
	c := t.products[l.product]
	l.waited, l.longest, l.busy = c.waited.Load(), c.longest.Load(), c.busy.Load()
}

// total adds up lines.
func total(lines []line) line {
	sum := line{product: "all"}
	for _, l := range lines {
		sum.requests += l.requests
		sum.sold += l.sold
		sum.refused += l.refused
		sum.waited += l.waited
		sum.busy += l.busy
		sum.longest = max(sum.longest, l.longest)
		sum.stockLeft += l.stockLeft
		sum.soldTwice += l.soldTwice
	}
	return sum
}

var columns = []string{"requests", "sold", "refused", "waited", "longest wait", "told busy", "stock left", "sold twice"}

// printTable writes a block for each act that has lines, and then an empty line. If no act has lines, it writes nothing.
func printTable(out io.Writer, results []*result) error {
	// tabwriter aligns either all columns to the right or none, so the first one is padded here.
	width := 0
	for _, res := range results {
		for _, l := range res.lines {
			width = max(width, len(res.act.name), len(l.product)+2)
		}
	}
	if width == 0 {
		return nil
	}
	const gap = 2
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, gap, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%-*s\t%s\t\n", width, "", strings.Join(columns, "\t"))
	for _, res := range results {
		fmt.Fprintf(w, "%-*s%s\n", width, res.act.name, strings.Repeat("\t", len(columns)+1))
		for _, l := range append(res.lines[:len(res.lines):len(res.lines)], total(res.lines)) {
			waited, longest, busy := "-", "-", "-"
			if res.act.locked {
				waited, longest, busy = fmt.Sprint(l.waited), seconds(l.longest), fmt.Sprint(l.busy)
			}
			fmt.Fprintf(w, "%-*s\t%d\t%d\t%d\t%s\t%s\t%s\t%d\t%d\t\n", width, "  "+l.product,
				l.requests, l.sold, l.refused, waited, longest, busy, l.stockLeft, l.soldTwice)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for row := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(row[gap:], " \n")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}

func seconds(ns int64) string { return fmt.Sprintf("%.2f s", time.Duration(ns).Seconds()) }

// summarize describes the outcome of the rush.
func summarize(res *result, cfg config) string {
	sum, stock := total(res.lines), cfg.products*cfg.stock
	switch {
	case res.act.locked && len(res.broken) == 0:
		return fmt.Sprintf("With the lock no unit was sold twice: %d of %d went out, each once, and %d customers were refused. "+
			"%d requests waited for their turn, the longest %s.", sum.sold, stock, sum.refused, sum.waited, seconds(sum.longest))
	case res.act.locked:
		return fmt.Sprintf("With the lock %d invariants broke.", len(res.broken))
	case len(res.broken) > 0:
		return fmt.Sprintf("Without the lock the shop sold %d units where it had %d: %d of them had been sold already, "+
			"and its books still show %d left.", sum.sold, stock, sum.soldTwice, sum.stockLeft)
	}
	return "Without the lock nothing broke this time. That was luck; try again with more -requests."
}
