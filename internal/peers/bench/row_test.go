package main

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// tried is a sample whose figure says when it was taken.
type tried struct {
	figure   float64
	failures int
}

func (t tried) trouble() (int, string) { return t.failures, "a\nreason" }

func TestInterleaveTurnsEveryOtherRoundAround(t *testing.T) {
	var order []int
	rows, err := interleave(3, []string{"a", "b"}, func(i int) (tried, error) {
		order = append(order, i)
		return tried{figure: float64(len(order))}, nil
	}, 16, "x")
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 1, 0, 0, 1}; !slices.Equal(order, want) {
		t.Errorf("got the order %v, want %v", order, want)
	}
	if !slices.Equal(rows[1].labels, []any{16, "x", "b"}) {
		t.Errorf("got the labels %v", rows[1].labels)
	}
	if !slices.Equal(rows[1].samples, []tried{{figure: 2}, {figure: 3}, {figure: 6}}) ||
		!slices.Equal(rows[1].first, []tried{{figure: 1}, {figure: 4}, {figure: 5}}) {
		t.Errorf("got %v beside %v", rows[1].samples, rows[1].first)
	}
	_, err = interleave(1, []string{"a"}, func(int) (tried, error) { return tried{}, peers.ErrHeld })
	if !errors.Is(err, peers.ErrHeld) {
		t.Errorf("got %v, want %v", err, peers.ErrHeld)
	}
}

func TestColumns(t *testing.T) {
	figure := func(s tried) float64 { return s.figure }
	r := row[tried]{
		labels:  []any{16, "b"},
		samples: []tried{{2, 1}, {3, 0}, {10, 2}},
		first:   []tried{{1, 0}, {4, 0}, {5, 0}},
	}
	table := tabulate("A title", []string{"n", ""}, []column[tried]{
		typical("median", 0, figure), ratio("ratio", figure), failed[tried](),
		typical("none", 0, func(tried) float64 { return math.NaN() }),
	}, []row[tried]{r, {labels: []any{1, "a"}, samples: r.samples[1:2], first: r.samples[1:2]}}, "")
	if want := []any{16, "b", 3., 2., 3., nil}; !slices.Equal(table.Rows[0], want) {
		t.Errorf("got %v, want %v", table.Rows[0], want)
	}
	if want := []string{"16 b: failed 3 times: a; reason."}; !slices.Equal(table.Notes, want) {
		t.Errorf("got the notes %q, want %q", table.Notes, want)
	}
}
