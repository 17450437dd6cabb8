package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	firstVersion = regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)`)
	required     = regexp.MustCompile(`(?m)^\s*(?:require )?(github\.com/holdfast-go/holdfast(?:/sqlfence/(?:gorm|pgx)fence|/core/metrics)?) (v\S+)`)
)

// A nested module that others import requires the root at the version that is released with it. A replace hides here what
// its users would find.
func TestModulesRequireTheReleasedVersion(t *testing.T) {
	root := filepath.Join("..", "..")
	log, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	first := firstVersion.FindSubmatch(log)
	if first == nil {
		t.Fatal("CHANGELOG.md has no version")
	}
	var files []string
	err = filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == "testdata" || name != root && strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return filepath.SkipDir
		}
		if d != nil && d.Name() == "go.mod" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range required.FindAllSubmatch(text, -1) {
			if found++; string(m[2]) != "v"+string(first[1]) {
				t.Errorf("%s requires %s %s; CHANGELOG.md begins with %s", file, m[1], m[2], first[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d requirements found", found)
	}
}
