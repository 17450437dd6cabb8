package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeCodeIsRun compares each Go block of the README with the examples: code that a reader pastes has
// been compiled and run.
func TestReadmeCodeIsRun(t *testing.T) {
	root := "../.."
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "*", "example*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var examples []string
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, unindented(string(src)))
	}
	blocks := goBlocks(string(readme))
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, block := range blocks {
		if !containsAny(examples, unindented(block)) {
			t.Errorf("this code of the README is in no example:\n%s", block)
		}
	}
}

func TestReadmeCheckCanFail(t *testing.T) {
	blocks := goBlocks("text\n```go\na()\n\tb()\n```\n```\nnot Go\n```\n")
	if len(blocks) != 1 {
		t.Fatalf("got %q, want one block", blocks)
	}
	if !containsAny([]string{unindented("func f() {\n\ta()\n\t\tb()\n}")}, unindented(blocks[0])) {
		t.Error("indentation should not matter")
	}
	if containsAny([]string{unindented("a()\nc()\nb()")}, unindented(blocks[0])) {
		t.Error("code that differs was taken as equal")
	}
}

func goBlocks(markdown string) []string {
	var blocks []string
	for {
		_, rest, ok := strings.Cut(markdown, "```go\n")
		if !ok {
			return blocks
		}
		block, after, ok := strings.Cut(rest, "```")
		if !ok {
			return blocks
		}
		blocks = append(blocks, block)
		markdown = after
	}
}

func unindented(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line))
		b.WriteByte('\n')
	}
	return b.String()
}

func containsAny(texts []string, part string) bool {
	for _, text := range texts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
