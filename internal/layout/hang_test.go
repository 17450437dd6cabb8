package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// quits are the methods of a test that end the goroutine which calls them. On another than the test's own that leaves mutexes
// locked and channels empty, and the test waits for them.
var quits = []string{"Fatal", "Fatalf", "FailNow", "Skip", "Skipf", "SkipNow", "TempDir", "Setenv", "Chdir"}

// inline are methods and functions of other modules that call a function before they return, on the goroutine of their caller.
// What the others are given may run on any goroutine.
var inline = strings.Fields("Run Cleanup Fuzz Test Check Do DoAll Lead WalkDir SortFunc ContainsFunc IndexFunc DeleteFunc FieldsFunc Inspect")

// suite is the source of the tests, and what of it quits. Only the types of this repository are known.
type suite struct {
	types.Info
	root  fs.FS
	fset  *token.FileSet
	files []*ast.File
	known map[string]*types.Package
	quit  map[types.Object]bool // functions that call one of quits
	other map[types.Object]bool // parameters that are called on another goroutine
	found map[string]bool
	tests map[string]bool // folders of tests, and whether these have a limit
}

// Import is that of a types.Importer. A package of another module is empty.
func (s *suite) Import(name string) (*types.Package, error) {
	if s.known[name] == nil {
		s.known[name] = types.NewPackage(name, strings.TrimPrefix(path.Base(regexp.MustCompile(`/v\d+$`).ReplaceAllString(name, "")), "go-"))
		s.known[name].MarkComplete()
		if dir, ok := strings.CutPrefix(name, modulePath+"/"); ok {
			if err := s.load(name, dir); err != nil {
				return nil, err
			}
		}
	}
	return s.known[name], nil
}

func (s *suite) load(name, dir string) error {
	names, err := fs.Glob(s.root, dir+"/*.go")
	packages := map[string][]*ast.File{} // the one of the folder, and its external tests
	for _, file := range names {
		source, err := fs.ReadFile(s.root, file)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(s.fset, file, source, 0)
		if err != nil {
			return err
		}
		packages[parsed.Name.Name] = append(packages[parsed.Name.Name], parsed)
		s.files = append(s.files, parsed)
	}
	for _, p := range slices.Sorted(maps.Keys(packages)) { // x comes before x_test
		checked, _ := (&types.Config{Importer: s, Error: func(error) {}, FakeImportC: true}).Check(name, s.fset, packages[p], &s.Info)
		if !strings.HasSuffix(p, "_test") {
			s.known[name] = checked
		}
		if slices.ContainsFunc(names, func(file string) bool { return strings.HasSuffix(file, "_test.go") }) {
			s.tests[dir] = s.tests[dir] || imports(checked, modulePath+"/internal/servertest/testlimit")
		}
	}
	return err
}

// imports tells whether p is the package at path, or imports it somehow.
func imports(p *types.Package, path string) bool {
	return p.Path() == path || strings.HasPrefix(p.Path(), modulePath) && slices.ContainsFunc(p.Imports(), func(p *types.Package) bool { return imports(p, path) })
}

// called is what an expression calls, where that is known, and its name.
func (s *suite) called(e ast.Expr) (types.Object, string) {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return s.ObjectOf(e), e.Name
	case *ast.SelectorExpr:
		return s.ObjectOf(e.Sel), e.Sel.Name
	case *ast.IndexExpr:
		return s.called(e.X)
	}
	return nil, ""
}

func (s *suite) quitting(e ast.Expr) bool {
	object, name := s.called(e)
	if sel, ok := e.(*ast.SelectorExpr); ok && object == nil && slices.Contains(quits, name) { // object: a method of our own
		x, _ := s.called(sel.X)
		_, isPackage := x.(*types.PkgName)
		return !isPackage
	}
	return s.quit[object]
}

// testOf tells whether a function is given a test, which is then the one of its goroutine.
func testOf(f *ast.FuncType) bool {
	return slices.ContainsFunc(f.Params.List, func(p *ast.Field) bool {
		return slices.Contains([]string{"*testing.T", "*testing.B", "*testing.F", "testing.TB", "*rapid.T"}, types.ExprString(p.Type))
	})
}

// walk goes through what runs on the goroutine of a test in function owner, or else on another, which on names.
func (s *suite) walk(n ast.Node, owner types.Object, on string) {
	breach := func(n ast.Node, on string) {
		if at := s.fset.Position(n.Pos()); strings.HasSuffix(at.Filename, "_test.go") {
			s.found[fmt.Sprintf("%s:%d: ends the goroutine of %s", at.Filename, at.Line, on)] = true
		}
	}
	elsewhere := func(e ast.Expr, on string) {
		if f, ok := e.(*ast.FuncLit); ok && !testOf(f.Type) {
			s.walk(f.Body, nil, on)
			return
		}
		if s.quitting(e) {
			breach(e, on)
		} else if object, _ := s.called(e); object != nil {
			s.other[object] = true
		}
		s.walk(e, owner, "")
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			if testOf(n.Type) {
				s.walk(n.Body, nil, "")
				return false
			}
		case *ast.GoStmt:
			elsewhere(n.Call.Fun, "a go statement")
			for _, arg := range n.Call.Args {
				s.walk(arg, owner, on)
			}
			return false
		case *ast.AssignStmt:
			for i, e := range n.Rhs {
				if f, ok := e.(*ast.FuncLit); ok && !testOf(f.Type) {
					if object, _ := s.called(n.Lhs[i]); object != nil {
						s.walk(f.Body, object, "") // where it is called tells
						continue
					}
				}
				s.walk(e, owner, on)
			}
			return false
		case *ast.CompositeLit:
			for _, e := range n.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					e = pair.Value
				}
				_, literal := e.(*ast.FuncLit)
				if of, ok := n.Type.(*ast.SelectorExpr); ok && literal {
					elsewhere(e, "a "+of.Sel.Name)
				} else {
					s.walk(e, owner, on)
				}
			}
			return false
		case *ast.CallExpr:
			object, name := s.called(n.Fun)
			switch {
			case s.quitting(n.Fun) && on != "":
				breach(n, on)
			case s.quitting(n.Fun) && owner != nil:
				s.quit[owner] = true
			case on != "" && object != nil:
				s.other[object] = true
			}
			var known *types.Tuple
			if object != nil {
				if signature, ok := object.Type().(*types.Signature); ok {
					known = signature.Params()
				}
			}
			for i, arg := range n.Args {
				_, literal := arg.(*ast.FuncLit)
				_, selector := n.Fun.(*ast.SelectorExpr)
				switch {
				case known.Len() > 0 && s.other[known.At(min(i, known.Len()-1))], name == "Go", name == "AfterFunc",
					literal && selector && object == nil && !slices.Contains(inline, name):
					elsewhere(arg, name)
				default:
					s.walk(arg, owner, on)
				}
			}
			s.walk(n.Fun, owner, on)
			return false
		}
		return true
	})
}

// hangBreaches finds what would have tests hang: calls in test files that end a goroutine of which they do not know that it is
// the test's, and tests that no limit ends.
func hangBreaches(root fs.FS) (files int, breaches []string, err error) {
	s := &suite{root: root, fset: token.NewFileSet(), known: map[string]*types.Package{}, quit: map[types.Object]bool{}, other: map[types.Object]bool{}, tests: map[string]bool{}}
	s.Defs, s.Uses = map[*ast.Ident]types.Object{}, map[*ast.Ident]types.Object{}
	err = fs.WalkDir(root, ".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if d.Name() == "testdata" || len(dir) > 1 && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		_, err = s.Import(modulePath + "/" + dir)
		return err
	})
	for before := -1; err == nil && before < len(s.quit)+len(s.other); { // until no more is known of helpers
		before = len(s.quit) + len(s.other)
		s.found = map[string]bool{}
		for _, f := range s.files {
			for _, d := range f.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					s.walk(f.Body, s.Defs[f.Name], "")
				}
			}
		}
	}
	for dir, limited := range s.tests {
		if !limited {
			s.found[dir+": its tests have no limit: one of its test files must import internal/servertest/testlimit, or internal/servertest"] = true
		}
	}
	return len(s.files), slices.Sorted(maps.Keys(s.found)), err
}

func TestTestsDoNotHang(t *testing.T) {
	files, breaches, err := hangBreaches(os.DirFS(filepath.Join("..", "..")))
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Errorf("only %d files found", files)
	}
	report(t, breaches)
}

func TestHangBreaches(t *testing.T) {
	file := func(source string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(source)} }
	const helpers = `package servertest
		import (
			"testing"
			_ "` + modulePath + `/internal/servertest/testlimit"
		)
		type Server struct { t testing.TB }
		func (s *Server) Stop() { s.stop() }
		func (s *Server) stop() { s.t.Fatal("stop") }
		func (s *Server) Look() { s.t.Error("look") }`
	const names = "package p_test\nimport (\"log\"; \"net/http\"; \"testing\"; \"" + modulePath + "/internal/servertest\")\n"
	const head = names +
		"func must(t *testing.T, err error) { t.Helper(); if err != nil { t.Fatal(err) } }\n" +
		"func within(f func()) { done := make(chan bool); go func() { f(); close(done) }(); <-done }\n" +
		"func Test(t *testing.T) { var s *servertest.Server; quick := func() { must(t, nil) }\n"
	for body, breach := range map[string]bool{
		`go func() { t.Fatal(1) }()`:                                    true,
		`go func() { t.Error(1) }()`:                                    false,
		`go func() { log.Fatal(1) }()`:                                  false,
		`go func() { must(t, nil) }()`:                                  true,
		`go must(t, nil)`:                                               true,
		`must(t, nil); quick()`:                                         false,
		`go quick()`:                                                    true,
		`all.Go(quick)`:                                                 true,
		`all.Go(func() { for range 3 { quick() } })`:                    true,
		`time.AfterFunc(1, func() { t.Skip() })`:                        true,
		`time.AfterFunc(1, s.Stop)`:                                     true,
		`go func() { s.Stop() }()`:                                      true,
		`go func() { s.Look() }()`:                                      false,
		`within(func() { must(t, nil) })`:                               true,
		`within(func() { t.Error(1) }); must(t, nil)`:                   false,
		`t.Run("x", func(t *testing.T) { t.Fatal(1) })`:                 false,
		`go func() { t.Run("x", func(t *testing.T) { t.Fatal(1) }) }()`: false,
		`defer func() { must(t, nil) }()`:                               false,
		`http.HandleFunc("/", func(http.ResponseWriter, *http.Request) { s.Stop() })`: true,
		`use(http.Server{Handler: func() { must(t, nil) }})`:                          true,
		`for _, f := range []func(){func() { t.Fatal(1) }} { f() }`:                   false,
	} {
		root := fstest.MapFS{"p/a_test.go": file(head + body + "\n}\n"), "internal/servertest/a.go": file(helpers), "internal/servertest/testlimit/a.go": file("package testlimit")}
		files, got, err := hangBreaches(root)
		if err != nil || files != 3 || (len(got) > 0) != breach {
			t.Errorf("%s: got %q of %d files, %v", body, got, files, err)
		}
	}
	bare := fstest.MapFS{"p/a_test.go": file("package p\nimport _ \"testing\""), "p/a.go": file("package p"), "q/a.go": file("package q")}
	if _, got, err := hangBreaches(bare); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], "p: ") {
		t.Errorf("got %q, %v, want a breach of p", got, err)
	}
}
