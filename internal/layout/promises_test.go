package layout

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`((?:[a-z/]+/)?Test[A-Za-z0-9]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

// promiseBreaches are the tests that a paper of promises names, as folder/TestName or of core, and that are not there.
func promiseBreaches(t *testing.T, root, paper string) (breaches []string) {
	t.Helper()
	there := map[string]map[string]bool{}
	for _, m := range testName.FindAllStringSubmatch(paper, -1) {
		folder, name := path.Split(m[1])
		if folder = path.Clean(folder); folder == "." {
			folder = "core"
		}
		if there[folder] == nil {
			there[folder] = map[string]bool{}
			files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				source, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range testFunc.FindAllSubmatch(source, -1) {
					there[folder][string(f[1])] = true
				}
			}
		}
		if !there[folder][name] {
			breaches = append(breaches, folder+" has no "+name)
		}
	}
	return breaches
}

func TestPromises(t *testing.T) {
	root := filepath.Join("..", "..")
	paper, err := os.ReadFile(filepath.Join(root, "core", "promises.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(paper), "\n") {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise ") && !testName.MatchString(line) {
			t.Errorf("line %d: a promise without a test", i+1)
		}
	}
	report(t, promiseBreaches(t, root, string(paper)))
	made := "`TestPromises` and `internal/layout/TestPromises`, `internal/layout/TestNone`"
	if got := promiseBreaches(t, root, made); len(got) != 2 || got[0] != "core has no TestPromises" || got[1] != "internal/layout has no TestNone" {
		t.Errorf("of %s: got %q", made, got)
	}
}
