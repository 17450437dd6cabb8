package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// How long anybody waits is that of a busy machine: what is checked is that all is measured, and nobody beyond the limit.
func TestSharesMeasureEveryTable(t *testing.T) {
	t.Parallel()
	tables := measured(t, brief("shares"))
	if len(tables) != 3 {
		t.Fatalf("got %d tables, want 3", len(tables))
	}
	for i, want := range []struct {
		part  string
		rows  int
		above []string
	}{
		{"burst", 4 * len(tenancies), []string{"p50 ms", "longest ms", "burst/ideal"}},
		{"loops", len(loopers) * len(loops), []string{"grants/s", "ratio", "commands"}},
		{"line", len(namings), []string{"join µs", "look µs", "leave µs", "release µs", "look ratio", "leave ratio"}},
	} {
		table := tables[i]
		if table.Part != "shares: "+want.part || len(table.Rows) != want.rows {
			t.Errorf("%s has %d rows, want %d of %s", table.Part, len(table.Rows), want.rows, want.part)
		}
		for _, row := range table.Rows {
			// Without the local line each of a thousand calls joins that of Redis first, which may take as long as the test measures.
			name := table.text(row, "")
			ours := want.part == "line" || strings.HasPrefix(name, us) && !strings.Contains(name, "no local line")
			if ours && (table.get(row, "failed") > 0 || table.get(row, "beyond") > 0 ||
				slices.ContainsFunc(want.above, func(name string) bool { return !(table.get(row, name) > 0) })) {
				t.Errorf("%s: got %v, want %q, and no failures", table.Part, row, want.above)
			}
		}
	}
}

// What is sent for others stands for as many waiters as Redis counts.
func TestLineThatIsMadeUpIsALine(t *testing.T) {
	target := newTestTarget(t)
	for _, naming := range namings {
		book, err := learn(t.Context(), target.addr, naming.name(0) != "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := measureLine(t.Context(), target.addr, 12, book, naming.name); err != nil {
			t.Fatal(err)
		}
		w, err := openHoldfast()(target)
		if err != nil {
			t.Fatal(err)
		}
		state, err := w.(ours).locker.Inspect(t.Context(), hot)
		names := map[string]int{"none": 1, "10": 10, "one each": 12}[naming.label]
		if err != nil || !state.Held || state.Waiting != 12 || state.Shares > names || names > 1 && state.Shares < 5 {
			t.Errorf("%s: got %+v, %v, want 12 that wait", naming.label, state, err)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitsOfATenant(t *testing.T) {
	ms := int64(time.Millisecond)
	n := tenant{diary: diary{Holds: []hold{{0, 9 * ms, 10 * ms}, {2 * ms, 5 * ms, 6 * ms}, {0, 20 * ms, 21 * ms}}}}
	if got := n.waits(5*ms, 20*ms); !slices.Equal(got, []float64{3, 9}) {
		t.Errorf("got %v, want 3 and 9", got)
	}
}
