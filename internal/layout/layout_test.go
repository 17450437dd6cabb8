package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// run returns what a command in the root of the module prints. A workspace
// would mix other modules' requirements into the answer.
func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

func root(t *testing.T) string {
	t.Helper()
	mod := strings.TrimSpace(string(run(t, ".", "go", "env", "GOMOD")))
	if filepath.Base(mod) != "go.mod" {
		t.Fatalf("not inside a module: GOMOD is %q", mod)
	}
	return filepath.Dir(mod)
}

func report(t *testing.T, breaches []string) {
	t.Helper()
	for _, breach := range breaches {
		t.Error(breach)
	}
}

func TestImports(t *testing.T) {
	// -e: what imports a module that cannot be downloaded is judged as well.
	list := json.NewDecoder(bytes.NewReader(run(t, root(t), "go", "list", "-e", "-deps", "-json=ImportPath,Standard,Imports,Module", "./...")))
	graph := map[string]pkg{}
	for {
		var p pkg
		err := list.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		graph[p.ImportPath] = p
	}
	if _, ok := graph[modulePath+"/internal/layout"]; !ok {
		t.Fatalf("the graph of %d packages lacks this one: it is not the graph of %s", len(graph), modulePath)
	}
	report(t, importBreaches(graph))
}

func TestRequirements(t *testing.T) {
	var mod modFile
	if err := json.Unmarshal(run(t, root(t), "go", "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require) == 0 {
		t.Fatal("go.mod requires nothing: the check reads the wrong file")
	}
	report(t, requireBreaches(mod))
}

func TestTopLevel(t *testing.T) {
	files := sources(t, root(t))
	if !slices.Contains(files, "go.mod") {
		t.Fatalf("%d files without go.mod: the check looks in the wrong place", len(files))
	}
	report(t, topLevelBreaches(files))
}

// sources returns the module's files: in a checkout those that git knows or
// would add, elsewhere, as in an unpacked archive, all.
func sources(t *testing.T, dir string) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
		if _, err := exec.LookPath("git"); err == nil {
			out := run(t, dir, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
			return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
		}
	}
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
