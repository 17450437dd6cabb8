package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParseGuard(t *testing.T) {
	rows, notes, err := parseGuard([]byte(`goos: linux
=== RUN   BenchmarkGuard/PostgreSQL/read-committed
BenchmarkGuard/PostgreSQL/read-committed
BenchmarkGuard/PostgreSQL/read-committed-2         	     200	    981234 ns/op	       415.5 µs/guarded	       300.0 µs/plain	         1.385 ratio
BenchmarkGuard/MariaDB/read-committed,found=false
    bench_test.go:9: no such program
--- SKIP: BenchmarkGuard/MariaDB/read-committed,found=false (0.00s)
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || !slices.Equal(rows[0].labels, []any{"PostgreSQL", "read-committed"}) ||
		!slices.Equal(rows[0].samples, []toll{{plain: 300, guarded: 415.5}}) {
		t.Errorf("got %+v", rows)
	}
	if !slices.Equal(notes, []string{"MariaDB/read-committed,found=false: not installed."}) {
		t.Errorf("got %q", notes)
	}
	if _, _, err := parseGuard([]byte("PASS\n")); err == nil {
		t.Error("no measurement passed")
	}
}

// The benchmark belongs to another module.
func TestGuardBenchmarkIsThere(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(sqltest, "bench_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"func " + guardBenchmark + "(", `"` + plainMetric + `"`, `"` + guardedMetric + `"`} {
		if !bytes.Contains(source, []byte(want)) {
			t.Errorf("there is no %s in the benchmark", want)
		}
	}
}
