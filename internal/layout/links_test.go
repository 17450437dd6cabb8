package layout

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	linkTo     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linkBy     = regexp.MustCompile(`\]\[([a-z0-9-]+)\]`)
	definition = regexp.MustCompile(`(?m)^\[([a-z0-9-]+)\]: (\S+)$`)
)

// linkBreaches checks the links of a paper: those within its folder lead to a file, and references
// are defined, once, and used.
func linkBreaches(root fs.FS, paper string) (breaches []string) {
	targets := map[string]bool{}
	for _, m := range linkTo.FindAllStringSubmatch(paper, -1) {
		targets[m[1]] = true
	}
	used := map[string]bool{}
	for _, m := range linkBy.FindAllStringSubmatch(paper, -1) {
		used[m[1]] = true
	}
	for _, m := range definition.FindAllStringSubmatch(paper, -1) {
		name, target := m[1], m[2]
		if !used[name] {
			breaches = append(breaches, "reference "+name+" is used nowhere, or defined twice")
		}
		delete(used, name)
		targets[target] = true
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		breaches = append(breaches, "reference "+name+" is not defined")
	}
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		file, _, _ := strings.Cut(target, "#")
		if file == "" || strings.Contains(file, "://") {
			continue
		}
		if _, err := fs.Stat(root, file); errors.Is(err, fs.ErrNotExist) || !fs.ValidPath(file) {
			breaches = append(breaches, "no file is at "+target)
		}
	}
	return breaches
}

func TestLinksOfPapers(t *testing.T) {
	for folder, paper := range map[string]string{".": "README.md", "core": "ARCHITECTURE.md", "cronlock": "limits.md"} {
		root := os.DirFS(filepath.Join("..", "..", folder))
		papers, err := fs.Glob(root, "*.md")
		if err != nil || !slices.Contains(papers, paper) {
			t.Fatalf("got papers %q and %v, want %s among them", papers, err, paper)
		}
		for _, name := range papers {
			text, err := fs.ReadFile(root, name)
			if err != nil {
				t.Fatal(err)
			}
			for _, breach := range linkBreaches(root, string(text)) {
				t.Errorf("%s: %s", filepath.Join(folder, name), breach)
			}
		}
	}
}

func TestLinkBreaches(t *testing.T) {
	root := os.DirFS(".")
	clean := "[this](doc.go#L1) and [that][a], [web](https://example.com/none)\n\n[a]: links_test.go\n"
	if got := linkBreaches(root, clean); len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	for added, want := range map[string]string{
		"[x](none.go)":      "no file is at none.go",
		"[x](../escape.go)": "no file is at ../escape.go",
		"[x][b]":            "reference b is not defined",
		"\n[c]: doc.go\n":   "reference c is used nowhere",
		"\n[a]: doc.go\n":   "reference a is used nowhere, or defined twice",
		"[x][d]\n[d]: none": "no file is at none",
	} {
		got := linkBreaches(root, clean+added)
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("with %q: got %q, want %q", added, got, want)
		}
	}
}
