package layout

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testFileBreaches names the test files of the root of core, among all its files, that are named after no source: a .go
// file of core or of its packages, or a script. hold_test.go and hold_suspend_test.go are of hold.go.
func testFileBreaches(files []string) (breaches []string) {
	names := []string{"helper", "example", "main", "export"}
	for _, file := range files {
		if ext := path.Ext(file); (ext == ".go" || ext == ".lua") && !strings.HasSuffix(file, "_test.go") {
			names = append(names, strings.TrimSuffix(path.Base(file), ext))
		}
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") || path.Base(file) != file {
			continue
		}
		if name, _, _ := strings.Cut(file, "_"); !slices.Contains(names, name) {
			breaches = append(breaches, "core/"+file+": no source is called "+name)
		}
	}
	return breaches
}

func TestTestFiles(t *testing.T) {
	var files []string
	err := fs.WalkDir(os.DirFS(filepath.Join("..", "..", "core")), ".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(files, "lock.go") || !slices.Contains(files, "internal/protocol/acquire.lua") {
		t.Fatalf("%d files without lock.go and acquire.lua: the check looks in the wrong place", len(files))
	}
	report(t, testFileBreaches(files))
}

func TestTestFileBreaches(t *testing.T) {
	files := []string{
		"lock.go", "lock_test.go", "lock_release_test.go", "internal/protocol/tick.lua", "tick_test.go", "internal/timing/gate.go", "gate_test.go",
		"helper_redis_test.go", "example_test.go", "example_lock_test.go", "main_test.go", "export_test.go", "internal/protocol/other_test.go", "doc.md",
	}
	if got := testFileBreaches(files); len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	got := testFileBreaches(append(files, "locks_test.go", "other_lock_test.go", "doc_test.go"))
	if len(got) != 3 || !strings.Contains(got[0], "locks") || !strings.Contains(got[1], "other") || !strings.Contains(got[2], "doc") {
		t.Errorf("got %q, want one for each of the three", got)
	}
}
