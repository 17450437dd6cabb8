package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// What is committed was not edited by hand, and the program's charts and tables are still those.
func TestCommittedResultsAreWhatTheirFiguresMake(t *testing.T) {
	dir := t.TempDir()
	if err := run(t.Context(), io.Discard, plan{from: "results/results.json", md: filepath.Join(dir, "results.md"), charts: dir}); err != nil {
		t.Fatal(err)
	}
	compare := func(name string) (want []byte) {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		got, err := os.ReadFile(filepath.Join("results", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("results/%s is not what results.json makes: go run . -from results/results.json -md results/results.md -charts results", name)
		}
		return want
	}
	compare("results.md")
	for _, c := range charts {
		if err := fits(compare(c.file)); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
	}
}
