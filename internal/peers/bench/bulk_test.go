package main

import (
	"testing"
	"time"
)

// The figures are those of a moment on a busy machine: what is checked is that there are some, and that nothing was lost count of.
func TestBulkMeasuresEveryScene(t *testing.T) {
	t.Parallel()
	p := brief("bulk")
	p.duration = 200 * time.Millisecond
	tables := measured(t, p)
	if len(tables) != len(sceneNames()) {
		t.Fatalf("got %d tables, want %d", len(tables), len(sceneNames()))
	}
	for i, rows := range []int{4, 4, 4, 2, 2} {
		table := tables[i]
		if table.Part != "bulk: "+sceneNames()[i] || len(table.Rows) != rows {
			t.Errorf("%s has %d rows, want %d of %s", table.Part, len(table.Rows), rows, sceneNames()[i])
		}
	}
	for _, table := range tables[:3] {
		for _, row := range table.Rows {
			if !(table.get(row, "inside") >= 0) || !(table.get(row, "goroutines") >= table.get(row, "beyond")) || !(table.get(row, "RSS MB") > 1) {
				t.Errorf("%s: got %v, want goroutines and memory", table.Part, row)
			}
		}
	}
	for _, row := range tables[2].Rows {
		if !(tables[2].get(row, "commands after") > 0) {
			t.Errorf("got %v, want commands when the hang ends", row)
		}
	}
	for _, row := range tables[3].Rows {
		if after := tables[3].get(row, "served after ms"); !(after >= 0 && after < 1e6) {
			t.Errorf("got %v, want a waiter that is served", row)
		}
	}
}

func TestParseBulkPlan(t *testing.T) {
	p, err := parseTestPlan("-bulk", "hang,stop", "-stops", "10ms,1s", "-hangs=1m", "-ttls=1s,1m", "-loads=50", "-stop-loads=50,95", "-everyone")
	if err != nil {
		t.Fatal(err)
	}
	if b := p.bulk; len(b.scenes) != 2 || len(b.stops) != 2 || b.hangs[0] != time.Minute || len(b.ttls) != 2 || b.loads[0] != 50 || len(b.stopLoads) != 2 || !b.everyone {
		t.Errorf("got %+v", b)
	}
	for _, bad := range []string{"-bulk=most", "-stops=0s", "-hangs=soon", "-loads=-1"} {
		if _, err := parseTestPlan(bad); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}
