package layout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// modulePath is the module under test.
const modulePath = "github.com/holdfast-go/holdfast"

// The modules that the project builds on; nothing else is required directly.
const (
	goRedis   = "github.com/redis/go-redis/v9"
	gin       = "github.com/gin-gonic/gin"
	asynq     = "github.com/hibiken/asynq"
	cron      = "github.com/robfig/cron/v3"
	miniredis = "github.com/alicebob/miniredis/v2"
)

// adapterPath is the folder of what adapters share and no user sees.
const adapterPath = modulePath + "/internal/adapter/"

// testPath is the package with which adapters are tested. It alone of those below core brings a Redis of its own.
const testPath = "core/adaptertest"

// allowed lists, for each package of the top level, the modules that it may
// import beside the standard library, and whether it may import core, and
// what is in adapterPath. A package below one of them is held to the same rule.
var allowed = map[string]struct {
	core    bool
	modules []string
}{
	"core":      {modules: []string{goRedis}},
	testPath:    {core: true, modules: []string{goRedis, miniredis}},
	"ginlock":   {core: true, modules: []string{gin}},
	"httplock":  {core: true},
	"asynqlock": {core: true, modules: []string{asynq, goRedis, cron}}, // cron reads the specs of asynq's Scheduler
	"cronlock":  {core: true, modules: []string{cron}},
	"sqlfence":  {core: true},
	"cmd":       {core: true, modules: []string{goRedis}},
}

// A pkg is one entry of `go list -deps -json`.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

func (p pkg) module() string {
	if p.Module == nil { // of the standard library, or of a module that cannot be downloaded: known by its root
		return p.ImportPath
	}
	return p.Module.Path
}

// owner returns which package of the top level a path belongs to.
func owner(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, modulePath+"/")
	if !ok {
		return ""
	}
	if rest == testPath {
		return rest
	}
	top, _, _ := strings.Cut(rest, "/")
	return top
}

// importBreaches checks the import graph against allowed.
func importBreaches(graph map[string]pkg) []string {
	var breaches []string
	for _, path := range slices.Sorted(maps.Keys(graph)) {
		rule, ok := allowed[owner(path)]
		if !ok {
			continue
		}
		for _, imported := range graph[path].Imports {
			to, known := graph[imported]
			switch top := owner(imported); {
			case known && to.Standard, imported == "C":
			case top == owner(path):
			case top == "core" && rule.core, strings.HasPrefix(imported, adapterPath) && rule.core:
			case known && slices.Contains(rule.modules, to.module()):
			default:
				breaches = append(breaches, fmt.Sprintf("%s must not import %s", path, imported))
			}
		}
	}
	return append(append(breaches, coreBreaches(graph)...), floorBreaches(graph)...)
}

// floors are the packages of core, the highest first: each may import those below.
var floors = []string{"core/tick", "core/redlock", "core", "core/internal/store", "core/internal/single", "core/internal/redisconn", "core/internal/protocol", "core/internal/timing"}

// floorBreaches checks that the packages of core import downwards only, and that each has its floor.
func floorBreaches(graph map[string]pkg) (breaches []string) {
	floor := func(path string) int { return slices.Index(floors, strings.TrimPrefix(path, modulePath+"/")) }
	for _, path := range slices.Sorted(maps.Keys(graph)) {
		if owner(path) != "core" {
			continue
		}
		from := floor(path)
		if from < 0 {
			breaches = append(breaches, fmt.Sprintf("%s has no floor", path))
			continue
		}
		for _, imported := range graph[path].Imports {
			if owner(imported) == "core" && floor(imported) <= from {
				breaches = append(breaches, fmt.Sprintf("%s must not import %s, which is above it", path, imported))
			}
		}
	}
	return breaches
}

// coreBreaches checks that everything reachable from core is the standard
// library, core, go-redis, or reachable from go-redis. The direct rule alone
// would miss a package that core reaches in a roundabout way.
func coreBreaches(graph map[string]pkg) []string {
	fromRedis := map[string]bool{}
	for path, p := range graph {
		if p.module() == goRedis {
			reach(graph, path, fromRedis)
		}
	}
	fromCore := map[string]bool{}
	for path := range graph {
		if owner(path) == "core" {
			reach(graph, path, fromCore)
		}
	}
	var breaches []string
	for _, path := range slices.Sorted(maps.Keys(fromCore)) {
		if p := graph[path]; !p.Standard && path != "C" && owner(path) != "core" && !fromRedis[path] {
			breaches = append(breaches, fmt.Sprintf("core must not depend on %s", path))
		}
	}
	return breaches
}

func reach(graph map[string]pkg, path string, seen map[string]bool) {
	if seen[path] {
		return
	}
	seen[path] = true
	for _, next := range graph[path].Imports {
		reach(graph, next, seen)
	}
}

// A modFile is the part of `go mod edit -json` that matters here.
type modFile struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct{ Old struct{ Path string } }
}

// requireBreaches checks what the root module asks of its users.
func requireBreaches(mod modFile) []string {
	var breaches []string
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains([]string{goRedis, gin, asynq, cron, miniredis}, r.Path) {
			breaches = append(breaches, "go.mod must not require "+r.Path+" directly: give it a nested module")
		}
	}
	for _, r := range mod.Replace {
		breaches = append(breaches, "go.mod must not replace "+r.Old.Path+": that does not reach users")
	}
	return breaches
}

// topLevel is all that may lie there beside dot-files.
var topLevel = []string{
	"go.mod", "go.sum", "go.work", "go.work.sum",
	"core", "httplock", "ginlock", "asynqlock", "cronlock", "sqlfence", "cmd", "examples", "internal",
	"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile",
}

// inside is all that may lie in internal: what adapters share, and six folders of tests and harnesses.
var inside = []string{"adapter", "history", "layout", "model", "peers", "servertest", "sqltest"}

// topLevelBreaches checks the first elements of slash-separated file names, and those in internal.
func topLevelBreaches(files []string) []string {
	found := map[string]bool{}
	for _, file := range files {
		top, rest, _ := strings.Cut(file, "/")
		found[top] = true
		if folder, _, _ := strings.Cut(rest, "/"); top == "internal" && !slices.Contains(inside, folder) {
			found["internal/"+folder] = true
		}
	}
	var breaches []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) {
			breaches = append(breaches, name+" must not lie there")
		}
	}
	return breaches
}
