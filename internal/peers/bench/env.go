package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// environment is on what was measured.
type environment struct {
	Command string            `json:"command"`
	Date    string            `json:"date"`
	Go      string            `json:"go"`
	System  string            `json:"system"`
	CPUs    int               `json:"cpus"`
	Redis   string            `json:"redis"`
	Load    string            `json:"load,omitempty"` // of the last minute before, by others
	Modules map[string]string `json:"modules"`
	LeftOut []string          `json:"leftOut,omitempty"` // the modules of peers that are not measured
}

const goRedisModule, syncModule = "github.com/redis/go-redis/v9", "golang.org/x/sync"

func (p plan) environment(ctx context.Context, s *server) (environment, error) {
	t := newTarget(s.addr, 1)
	defer t.close()
	info, err := t.rdb.Info(ctx, "server").Result()
	if err != nil {
		return environment{}, fmt.Errorf("the server's version: %w", err)
	}
	redis := "Redis " + field(info, "redis_version:")
	if v := field(info, "valkey_version:"); v != "" {
		redis = "Valkey " + v
	}
	modules, leftOut := map[string]string{goRedisModule: version(goRedisModule), syncModule: version(syncModule)}, []string(nil)
	for _, lib := range peers.Libraries() {
		if lib.Present() {
			modules[lib.Module] = version(lib.Module)
		} else {
			leftOut = append(leftOut, lib.Module)
		}
	}
	return environment{
		p.line(), time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH,
		runtime.GOMAXPROCS(0), redis, load(), modules, leftOut,
	}, nil
}

// load is how many processes wanted a processor in the last minute, where the system tells.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(text), " ")
	return minute
}

// sentence is for people.
func (e environment) sentence() string {
	s := fmt.Sprintf("%s, %s, %s on %d CPUs (%s)", e.Date, e.Redis, e.Go, e.CPUs, e.System)
	if e.Load != "" {
		s += ", with a load of " + e.Load + " by others at the start"
	}
	for _, m := range slices.Sorted(maps.Keys(e.Modules)) {
		s += ", " + m + " " + e.Modules[m]
	}
	for _, m := range e.LeftOut {
		s += ", " + m + " left out"
	}
	return s
}

// line is the command as the shell took it, in this directory.
func (p plan) line() string {
	line := "go run ."
	for _, arg := range p.args {
		if strings.ContainsAny(arg, " ()") {
			arg = strconv.Quote(arg)
		}
		line += " " + arg
	}
	return line
}

// field returns the value of a line of INFO.
func field(info, prefix string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			return value
		}
	}
	return ""
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				if dep.Replace != nil {
					dep = dep.Replace
				}
				return dep.Version
			}
		}
	}
	return "of unknown version"
}
