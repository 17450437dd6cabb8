package readme

import (
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// section is the Go code below one heading of a paper. It is one program.
type section struct {
	title    string
	snippets []snippet
	blank    []string // imports that the text of the section names: `import _ "path"`
}

// snippet is one block of Go code.
type snippet struct {
	line   int // of its first line in the paper
	code   string
	prints string // what the paper says behind it
	stated bool
}

var (
	output = regexp.MustCompile("^\n*It prints `([^`\n]*)`")
	blank  = regexp.MustCompile("`import _ (\"[^\"`]+\")`")
)

// sections returns those that have Go code, in the order of the paper.
func sections(paper string) (found []section) {
	const open, shut = "```go\n", "\n```\n"
	for i, text := range strings.Split("\n"+paper, "\n## ") {
		s := section{title: "the beginning"}
		if i > 0 {
			s.title, _, _ = strings.Cut(text, "\n")
		}
		for _, m := range blank.FindAllStringSubmatch(text, -1) {
			s.blank = append(s.blank, m[1])
		}
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, open)
			if !ok {
				break
			}
			code, behind, _ := strings.Cut(after, shut)
			at := strings.Index("\n"+paper, after)
			one := snippet{line: strings.Count(paper[:at-1], "\n") + 1, code: code}
			if m := output.FindStringSubmatch(behind); m != nil {
				one.prints, one.stated = m[1], true
			}
			s.snippets = append(s.snippets, one)
			rest = behind
		}
		if len(s.snippets) > 0 {
			found = append(found, s)
		}
	}
	return found
}

// imports are those that goimports would add.
var imports = map[string]string{
	"asynq":     "github.com/hibiken/asynq",
	"asynqlock": "github.com/holdfast-go/holdfast/asynqlock",
	"context":   "context",
	"cron":      "github.com/robfig/cron/v3",
	"cronlock":  "github.com/holdfast-go/holdfast/cronlock",
	"errors":    "errors",
	"fmt":       "fmt",
	"gin":       "github.com/gin-gonic/gin",
	"ginlock":   "github.com/holdfast-go/holdfast/ginlock",
	"holdfast":  "github.com/holdfast-go/holdfast/core",
	"http":      "net/http",
	"httplock":  "github.com/holdfast-go/holdfast/httplock",
	"httptest":  "net/http/httptest",
	"log":       "log",
	"os":        "os",
	"miniredis": "github.com/alicebob/miniredis/v2",
	"redis":     "github.com/redis/go-redis/v9",
	"redlock":   "github.com/holdfast-go/holdfast/core/redlock",
	"sql":       "database/sql",
	"sqlfence":  "github.com/holdfast-go/holdfast/sqlfence",
	"testing":   "testing",
	"time":      "time",
}

// program is a section as a reader pastes it: `package main` and the imports, which go/format and goimports add, and the
// code as it is printed. A section of statements goes at the end of the function main that the paper begins with.
type program struct {
	source  string
	prints  string
	test    bool // it has a test and no main
	imports []string
}

// assemble makes a program of s. first is the paper's first section: a main, alone. file is the paper's name in messages
// of the compiler.
func assemble(first, s section, file string) (p program, err error) {
	var body strings.Builder
	var prints []string
	place := func(one snippet, code string) {
		fmt.Fprintf(&body, "//line %s:%d\n%s\n", file, one.line, code)
		if !one.stated {
			err = errors.Join(err, fmt.Errorf("%s:%d: what this code prints is not said behind it: It prints `...`", file, one.line))
		}
		prints = append(prints, one.prints)
		if neat, bad := format.Source([]byte(one.code)); bad == nil && string(neat) != one.code {
			err = errors.Join(err, fmt.Errorf("%s:%d: not as gofmt writes it:\n%s", file, one.line, neat))
		}
	}
	main := first.snippets[0]
	head, ok := strings.CutSuffix(main.code, "\n}")
	if !ok || !strings.HasPrefix(head, "func main() {\n") || len(first.snippets) != 1 {
		return p, fmt.Errorf("%s: the code that it begins with is not one function main", file)
	}
	switch p.test = strings.HasPrefix(s.snippets[0].code, "func Test"); {
	case p.test || s.snippets[0].code == main.code:
		for _, one := range s.snippets {
			place(one, one.code)
		}
	default:
		place(main, head)
		for _, one := range s.snippets {
			place(one, one.code)
		}
		body.WriteString("}\n")
	}
	p.prints = strings.Join(prints, "\n") + "\n"

	tree, bad := parser.ParseFile(token.NewFileSet(), file, "package main\n"+body.String(), parser.SkipObjectResolution)
	if bad != nil {
		return p, errors.Join(err, bad)
	}
	used := map[string]bool{}
	ast.Inspect(tree, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && imports[x.Name] != "" {
				used[imports[x.Name]] = true
			}
		}
		return true
	})
	p.imports = slices.Sorted(maps.Keys(used))
	var source strings.Builder
	source.WriteString("package main\n\n")
	for _, path := range p.imports {
		fmt.Fprintf(&source, "import %q\n", path)
	}
	for _, path := range s.blank {
		fmt.Fprintf(&source, "import _ %s\n", path)
	}
	p.source = source.String() + body.String()
	return p, err
}
