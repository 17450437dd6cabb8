package layout

import (
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

// nested are modules of their own, whose imports the graph of this one does not have.
var nested = map[string][]string{
	"sqlfence/gormfence":  {modulePath + "/core", modulePath + "/sqlfence", "gorm.io/gorm"},
	"sqlfence/pgxfence":   {modulePath + "/core", modulePath + "/sqlfence", modulePath + "/sqlfence/internal/native", "github.com/jackc/pgx/v5"},
	"core/metrics":        {modulePath + "/core", "github.com/prometheus/client_golang/prometheus"},
	"cronlock/gocronlock": {modulePath + "/core", modulePath + "/core/tick", "github.com/go-co-op/gocron/v2"},
}

// nestedBreaches checks what the sources in the root of a folder import beside the standard library.
func nestedBreaches(folder fs.FS, allowed []string) (sources int, breaches []string) {
	files, err := fs.Glob(folder, "*.go")
	if err != nil {
		return 0, []string{err.Error()}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		sources++
		source, err := fs.ReadFile(folder, file)
		if err != nil {
			breaches = append(breaches, err.Error())
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
		if err != nil {
			breaches = append(breaches, err.Error())
			continue
		}
		for _, imported := range parsed.Imports {
			name := strings.Trim(imported.Path.Value, `"`)
			if first, _, _ := strings.Cut(name, "/"); strings.Contains(first, ".") && !slices.Contains(allowed, name) {
				breaches = append(breaches, path.Base(file)+" must not import "+name)
			}
		}
	}
	return sources, breaches
}

func TestNestedModules(t *testing.T) {
	for module, allowed := range nested {
		sources, breaches := nestedBreaches(os.DirFS(filepath.Join("..", "..", filepath.FromSlash(module))), allowed)
		if sources == 0 {
			t.Fatalf("no sources of %s: the check looks in the wrong place", module)
		}
		report(t, breaches)
	}

	file := func(imported string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package p\n\nimport _ \"" + imported + "\"\n")}
	}
	made := fstest.MapFS{"a.go": file("gorm.io/gorm"), "b.go": file("database/sql"), "c.go": file("gorm.io/driver/mysql"), "c_test.go": file("example.com/x")}
	if _, got := nestedBreaches(made, nested["sqlfence/gormfence"]); len(got) != 1 || got[0] != "c.go must not import gorm.io/driver/mysql" {
		t.Errorf("got %q, want c.go alone", got)
	}
}
