package layout

import (
	"slices"
	"strings"
	"testing"
)

// graphOf builds an import graph from lines such as "core: fmt go-redis",
// where short names stand for packages of this module or of the known ones.
func graphOf(lines ...string) map[string]pkg {
	modules := map[string]string{
		"go-redis": goRedis, "gin": gin, "asynq": asynq, "cron": cron, "miniredis": miniredis,
		"xxhash": "github.com/cespare/xxhash/v2", "sse": "github.com/gin-contrib/sse", "other": "example.com/other",
	}
	path := func(name string) string {
		switch base, _, _ := strings.Cut(name, "/"); {
		case modules[base] != "":
			return modules[base] + strings.TrimPrefix(name, base)
		case slices.Contains([]string{"fmt", "net", "database"}, base):
			return name
		default:
			return modulePath + "/" + name
		}
	}
	graph := map[string]pkg{}
	add := func(name string) {
		p := pkg{ImportPath: path(name)}
		base, _, _ := strings.Cut(name, "/")
		p.Standard = p.ImportPath == name
		if m := modules[base]; m != "" {
			p.Module = &struct{ Path string }{m}
		} else if !p.Standard {
			p.Module = &struct{ Path string }{modulePath}
		}
		if _, ok := graph[p.ImportPath]; !ok {
			graph[p.ImportPath] = p
		}
	}
	for _, line := range lines {
		from, to, _ := strings.Cut(line, ":")
		add(from)
		p := graph[path(from)]
		for _, name := range strings.Fields(to) {
			add(name)
			p.Imports = append(p.Imports, path(name))
		}
		graph[p.ImportPath] = p
	}
	return graph
}

func TestImportBreaches(t *testing.T) {
	clean := []string{
		"core: fmt go-redis core/internal/protocol", "core/internal/protocol: net", "go-redis: net xxhash", "xxhash: fmt",
		"ginlock: core gin net/http internal/adapter/jsonfield", "gin: sse", "asynqlock: core asynq go-redis", "cronlock: core cron",
		"httplock: core net/http internal/adapter/web", "internal/adapter/web: core net/http",
		"sqlfence: core database/sql", "internal/servertest: miniredis go-redis",
	}
	tests := []struct {
		name string
		line string // added to the clean graph
		want string // part of the breach; empty for none
	}{
		{"nothing wrong", "", ""},
		{"a package of go-redis", "core: go-redis/maintnotifications", ""},
		{"another module in core", "core: other", "core must not import example.com/other"},
		{"a dependency of go-redis in core", "core: xxhash", "core must not import github.com/cespare/xxhash/v2"},
		{"an adapter in core", "core: ginlock", "core must not import " + modulePath + "/ginlock"},
		{"internal in core", "core: internal/servertest", "core must not import " + modulePath + "/internal/servertest"},
		{"a floor upwards", "core/internal/protocol: core/internal/redisconn", "core/internal/protocol must not import " + modulePath + "/core/internal/redisconn, which is above it"},
		{"a room without a floor", "core/internal/attic: fmt", "core/internal/attic has no floor"},
		{"another module below core", "core/internal/protocol: other", "core/internal/protocol must not import example.com/other"},
		{"another module through internal", "core: internal/servertest", "core must not depend on github.com/alicebob/miniredis/v2"},
		{"gin's dependency in ginlock", "ginlock: sse", "ginlock must not import github.com/gin-contrib/sse"},
		{"go-redis in ginlock", "ginlock: go-redis", "ginlock must not import " + goRedis},
		{"internal in an adapter", "ginlock: internal/servertest", "ginlock must not import " + modulePath + "/internal/servertest"},
		{"an adapter in another", "cronlock: ginlock", "cronlock must not import " + modulePath + "/ginlock"},
		{"a host in httplock", "httplock: gin", "httplock must not import " + gin},
		{"another host in an adapter", "asynqlock: gin", "asynqlock must not import " + gin},
		{"a driver in sqlfence", "sqlfence: other", "sqlfence must not import example.com/other"},
		{"go-redis in sqlfence", "sqlfence: go-redis", "sqlfence must not import " + goRedis},
		{"anything in internal", "internal/servertest: other core", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := importBreaches(graphOf(append(slices.Clone(clean), tt.line)...))
			if tt.line == "" || tt.want == "" {
				if len(got) != 0 {
					t.Errorf("got %q, want none", got)
				}
				return
			}
			if !slices.ContainsFunc(got, func(b string) bool { return strings.Contains(b, tt.want) }) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRequireBreaches(t *testing.T) {
	var mod modFile
	require := func(path string, indirect bool) {
		mod.Require = append(mod.Require, struct {
			Path     string
			Indirect bool
		}{path, indirect})
	}
	for _, path := range []string{goRedis, gin, asynq, cron, miniredis} {
		require(path, false)
	}
	require("example.com/indirect", true)
	if got := requireBreaches(mod); len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	require("example.com/direct", false)
	mod.Replace = append(mod.Replace, struct{ Old struct{ Path string } }{struct{ Path string }{"example.com/old"}})
	if got := requireBreaches(mod); len(got) != 2 || !strings.Contains(got[0], "example.com/direct") || !strings.Contains(got[1], "example.com/old") {
		t.Errorf("got %q, want the direct requirement and the replacement", got)
	}
}

func TestTopLevelBreaches(t *testing.T) {
	files := []string{"go.mod", "core/lock.go", "internal/peers/go.mod", ".ci/run", "README.md", "examples/quickstart/main.go"}
	if got := topLevelBreaches(files); len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	got := topLevelBreaches(append(files, "pkg/a.go", "pkg/b.go", "NOTES.md", "internal/bench/a.go"))
	if len(got) != 3 || !strings.HasPrefix(got[0], "NOTES.md ") || !strings.HasPrefix(got[1], "internal/bench ") || !strings.HasPrefix(got[2], "pkg ") {
		t.Errorf("got %q, want NOTES.md, internal/bench and pkg", got)
	}
}
