package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// sample is one measurement.
type sample interface {
	// trouble is how often something failed meanwhile, and a reason of one of those.
	trouble() (failures int, reason string)
}

// row is all measurements of one contender in one setting.
type row[S sample] struct {
	labels  []any // of the setting; the last one is the contender's name
	samples []S
	first   []S // the first contender's, of the same rounds
}

// interleave measures contenders in turns. A round is short and measures each of them, every other round in the opposite
// order, so that a disturbance neither meets only one of them nor always the same.
func interleave[S sample](rounds int, names []string, measure func(i int) (S, error), setting ...any) ([]row[S], error) {
	rows := make([]row[S], len(names))
	for i, name := range names {
		rows[i].labels = append(slices.Clone(setting), name)
	}
	for round := range rounds {
		for k := range names {
			i := k
			if round%2 == 1 {
				i = len(names) - 1 - k
			}
			s, err := measure(i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", names[i], err)
			}
			rows[i].samples = append(rows[i].samples, s)
		}
	}
	for i := range rows {
		rows[i].first = rows[0].samples
	}
	return rows, nil
}

// column is one figure of a row.
type column[S sample] struct {
	head  head
	value func(row[S]) float64
}

// typical is the median over the rounds.
func typical[S sample](name string, digits int, figure func(S) float64) column[S] {
	return column[S]{head{name, digits}, func(r row[S]) float64 {
		var values []float64
		for _, s := range r.samples {
			values = append(values, figure(s))
		}
		return median(values)
	}}
}

// ratio compares round by round, in which both contenders met much the same machine.
func ratio[S sample](name string, figure func(S) float64) column[S] {
	return column[S]{head{name, 2}, func(r row[S]) float64 {
		var values []float64
		for i, s := range r.samples {
			values = append(values, figure(s)/figure(r.first[i]))
		}
		return median(values)
	}}
}

// most is the largest of all rounds.
func most[S sample](name string, digits int, figure func(S) float64) column[S] {
	return column[S]{head{name, digits}, func(r row[S]) float64 {
		largest := figure(r.samples[0])
		for _, s := range r.samples[1:] {
			largest = max(largest, figure(s))
		}
		return largest
	}}
}

// total is the sum of all rounds.
func total[S sample](name string, figure func(S) int) column[S] {
	return column[S]{head{name, 0}, func(r row[S]) float64 {
		sum := 0
		for _, s := range r.samples {
			sum += figure(s)
		}
		return float64(sum)
	}}
}

func failed[S sample]() column[S] {
	return total("failed", func(s S) int { n, _ := s.trouble(); return n })
}

// tabulate makes a table of rows, whose labels have the given heads.
func tabulate[S sample](title string, labels []string, columns []column[S], rows []row[S], legend string) table {
	t := table{Title: title, Legend: legend}
	for _, l := range labels {
		t.Heads = append(t.Heads, head{l, 0})
	}
	for _, c := range columns {
		t.Heads = append(t.Heads, c.head)
	}
	for _, r := range rows {
		cells := slices.Clone(r.labels)
		for _, c := range columns {
			cells = append(cells, cell(c.value(r)))
		}
		t.Rows = append(t.Rows, cells)
		t.complain(r.labels, r.failures())
	}
	return t
}

// failures is a sentence about what went wrong, or empty.
func (r row[S]) failures() string {
	sum, first := 0, ""
	for _, s := range r.samples {
		n, reason := s.trouble()
		sum, first = sum+n, cmp.Or(first, reason)
	}
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf("failed %d times: %s", sum, cmp.Or(first, "no reason given"))
}

// median sorts values, of which there must be one at least.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// quantile returns the smallest value of sorted that at least the share q of all does not exceed; none of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(i, 0)]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
