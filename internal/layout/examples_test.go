package layout

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// notToCopy are programs in examples that are demonstrations.
var notToCopy = []string{"tour"}

// ownServers is the file of an example that starts servers, and that a reader with servers leaves out.
const ownServers = "own.go"

// exampleBreaches checks that the programs in the folders of examples can be copied: each says at its top what it shows and
// how to run it, connects in its main.go, which is short, and needs no internal package. A server of one waits for no client
// for ever.
func exampleBreaches(examples fs.FS) (programs, breaches []string) {
	mains, err := fs.Glob(examples, "*/main.go")
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, main := range mains {
		program := path.Dir(main)
		if slices.Contains(notToCopy, program) {
			continue
		}
		programs = append(programs, program)
		breach := func(format string, args ...any) {
			breaches = append(breaches, fmt.Sprintf("examples/"+program+" "+format, args...))
		}
		files, err := fs.Glob(examples, program+"/*.go")
		if err != nil {
			breach("%v", err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || path.Base(file) == ownServers {
				continue
			}
			source, err := fs.ReadFile(examples, file)
			if err != nil {
				breach("%v", err)
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly|parser.ParseComments)
			if err != nil {
				breach("%v", err)
				continue
			}
			for _, imported := range parsed.Imports {
				if name := strings.Trim(imported.Path.Value, `"`); slices.Contains(strings.Split(name, "/"), "internal") {
					breach("must not import %s: a copy could not", name)
				}
			}
			for _, boundless := range []string{"http.Serve(", "ListenAndServe", ".Run(\":"} {
				if bytes.Contains(source, []byte(boundless)) {
					breach("has %s: want an http.Server with a ReadTimeout", boundless)
				}
			}
			if bytes.Contains(source, []byte("http.Server{")) && !bytes.Contains(source, []byte("ReadTimeout:")) {
				breach("has an http.Server without a ReadTimeout, which waits for ever for a body that does not come")
			}
			if file != main {
				continue
			}
			if n := bytes.Count(source, []byte("\n")); n > longestMain(program) {
				breach("has a main.go of %d lines, more than %d", n, longestMain(program))
			}
			if !bytes.Contains(source, []byte("locker.Ping(")) {
				breach("does not Ping Redis before it begins")
			}
			if doc := parsed.Doc.Text(); !strings.HasPrefix(strings.ToLower(doc), program+" ") || !strings.Contains(doc, "go run ") {
				breach("does not say at its top what it shows, and how to run it")
			}
		}
	}
	return programs, breaches
}

// longestMain is the most lines of a main.go.
func longestMain(program string) int {
	if program == "quickstart" { // it plays the service, the replicas and the customers in one file
		return 140
	}
	return 110
}

func TestExamples(t *testing.T) {
	programs, breaches := exampleBreaches(os.DirFS(filepath.Join("..", "..", "examples")))
	if !slices.Contains(programs, "gin") || !slices.Contains(programs, "sentinel") {
		t.Fatalf("got programs %q: the check looks in the wrong place", programs)
	}
	report(t, breaches)
}

func TestExampleBreaches(t *testing.T) {
	file := func(source string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(source)} }
	const doc, body = "// Demo shows something.\n//\n//\tgo run ./examples/demo\n", "\nfunc main() { locker.Ping(ctx) }\n"
	const internal = "import _ \"" + modulePath + "/examples/internal/backend\"\n"
	clean := fstest.MapFS{
		"demo/main.go":      file(doc + "package main\n" + body),
		"demo/own.go":       file("package main\n\n" + internal),
		"demo/main_test.go": file("package main\n\n" + internal),
		"tour/main.go":      file("package main\n\n" + internal + strings.Repeat("\n", 200)),
	}
	programs, breaches := exampleBreaches(clean)
	if !slices.Equal(programs, []string{"demo"}) || len(breaches) != 0 {
		t.Errorf("got programs %q and breaches %q, want demo and none", programs, breaches)
	}
	for want, added := range map[string]fstest.MapFS{
		"must not import " + modulePath + "/examples/internal/backend": {"demo/connect.go": file("package main\n\n" + internal)},
		"must not import internal/x":                                   {"demo/main.go": file(doc + "package main\n\nimport _ \"internal/x\"\n" + body)},
		"has a main.go of 111 lines":                                   {"demo/main.go": file(doc + "package main\n" + body + strings.Repeat("\n", 105))},
		"does not Ping":                                                {"demo/main.go": file(doc + "package main\n")},
		"does not say at its top":                                      {"demo/main.go": file("// Demo shows something.\npackage main\n" + body)},
		"http.Server without a ReadTimeout":                            {"demo/serve.go": file("package main\n\nvar s = http.Server{ReadHeaderTimeout: 1}\n")},
		"has http.Serve(":                                              {"demo/serve.go": file("package main\n\nvar err = http.Serve(l, h)\n")},
		"expected 'package'":                                           {"demo/main.go": file("no Go")},
	} {
		broken := fstest.MapFS{}
		for _, files := range []fstest.MapFS{clean, added} {
			for name, f := range files {
				broken[name] = f
			}
		}
		if _, got := exampleBreaches(broken); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
