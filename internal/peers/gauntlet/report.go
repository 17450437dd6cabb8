package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// report is what came of a plan.
type report struct {
	plan
	server   string // its version
	findings []finding
}

// writeMarkdown writes the table, and below it what each scenario is and what was observed.
func (r report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Each scenario ran %d times; redis-server %s, %s/%s. fail: every time. varies: not every time, no verdict.\n\n",
		r.times, r.server, runtime.GOOS, runtime.GOARCH)
	if out := leftOut(); len(out) > 0 {
		fmt.Fprintf(&b, "Left out of this program: %s.\n\n", strings.Join(out, ", "))
	}
	r.writeTable(&b, false)
	r.writeTable(&b, true)
	for i, s := range r.scenarios {
		fmt.Fprintf(&b, "\n[^%d]: %s <%s>\n", i+1, s.wrong, s.source)
		for _, f := range r.of(s) {
			fmt.Fprintf(&b, "    - %s: %s: %s\n", f.Library, f.Outcome, f.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTable writes the table of locks with one holder or with several, if there is any.
func (r report) writeTable(b *strings.Builder, together bool) {
	var names []string
	for _, l := range r.libraries {
		if !l.fits(scenario{together: together}) {
			continue
		}
		name := l.name
		if v := version(l.module); v != "" {
			name += " " + v
		}
		names = append(names, name)
	}
	if len(names) == 0 || !slices.ContainsFunc(r.scenarios, func(s scenario) bool { return s.together == together }) {
		return
	}
	if together {
		b.WriteString("\nLocks that several hold together. Redisson and redis-semaphore are for other languages: what ran are their " +
			"algorithms, written in Go. The sorted set by hand is what services write themselves.\n\n")
	}
	fmt.Fprintf(b, "| | %s |\n|---%s|\n", strings.Join(names, " | "), strings.Repeat("|---", len(names)))
	for i, s := range r.scenarios {
		if s.together != together {
			continue
		}
		fmt.Fprintf(b, "| %s [^%d] ", s.name, i+1)
		for _, f := range r.of(s) {
			cell := string(f.Outcome)
			switch f.Outcome {
			case fails:
				cell = "**fail**"
			case varies:
				cell = fmt.Sprintf("varies: failed %d of %d", f.Fails, f.Runs)
			}
			fmt.Fprintf(b, "| %s ", cell)
		}
		b.WriteString("|\n")
	}
}

// of is the findings of one scenario, in the order of the libraries.
func (r report) of(s scenario) (all []finding) {
	for _, f := range r.findings {
		if f.Scenario == s.name {
			all = append(all, f)
		}
	}
	return all
}

// version is that of a module in this program; none for the module that it belongs to.
func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module && dep.Replace == nil {
				return dep.Version
			}
		}
	}
	return ""
}

// serverVersion asks a server, and fails where there is none.
func serverVersion() (v string, err error) {
	var p servertest.Program
	defer p.End()
	err = p.Do(func() {
		info, err := servertest.Redis(&p).Client().InfoMap(context.Background(), "server").Result()
		if err != nil {
			p.Fatal(err)
		}
		v = info["Server"]["redis_version"]
	})
	return v, err
}
