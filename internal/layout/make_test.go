package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	makes  = regexp.MustCompile("(?m)(?:^|`|run: )make ([a-z]+)")
	target = regexp.MustCompile(`(?m)^([a-z]+):`)
)

// makeBreaches names what a text has make do and the Makefile does not.
func makeBreaches(makefile, text string) (breaches []string) {
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	for _, m := range makes.FindAllStringSubmatch(text, -1) {
		if !targets[m[1]] {
			breaches = append(breaches, "no target of the Makefile is called "+m[1])
		}
	}
	return breaches
}

func TestMakeTargetsExist(t *testing.T) {
	root := os.DirFS(filepath.Join("..", ".."))
	makefile, err := fs.ReadFile(root, "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	papers, _ := fs.Glob(root, "*.md")
	workflows, _ := fs.Glob(root, ".github/workflows/*.yml")
	if len(papers) == 0 || len(workflows) == 0 {
		t.Fatalf("got papers %q and workflows %q, want some of each", papers, workflows)
	}
	for _, name := range append(papers, workflows...) {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, breach := range makeBreaches(string(makefile), string(text)) {
			t.Errorf("%s: %s", name, breach)
		}
	}

	const text = "make test\n  - run: make check\nuse `make soak`, and make it quick"
	if got := makeBreaches("test:\ncheck: x\nsoak:\n", text); len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	if got := makeBreaches("", text); len(got) != 3 {
		t.Errorf("got %q, want one for each of the three", got)
	}
}
