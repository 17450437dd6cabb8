package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// describe says what was measured without contention and on what, in one sentence.
func describe(ctx context.Context, t *target, p plan) (string, error) {
	on, err := environment(ctx, t, p)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("`go run . -rounds %d -duration %v -pool %d`: uncontended acquire and release, a key for each goroutine; "+
		"medians of %d rounds of %v; %s.", p.rounds, p.duration, p.pool, p.rounds, p.duration, on), nil
}

func environment(ctx context.Context, t *target, p plan) (string, error) {
	info, err := t.rdb.Info(ctx, "server").Result()
	if err != nil {
		return "", fmt.Errorf("the server's version: %w", err)
	}
	server := "Redis " + field(info, "redis_version:")
	if v := field(info, "valkey_version:"); v != "" {
		server = "Valkey " + v
	}
	pool := "go-redis' default number of connections"
	if p.pool > 0 {
		pool = fmt.Sprintf("%d connections", p.pool)
	}
	return fmt.Sprintf("%s, go-redis %s with %s, %s on %d CPUs (%s/%s)", server, version("github.com/redis/go-redis/v9"),
		pool, runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH), nil
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
				return dep.Version
			}
		}
	}
	return "of unknown version"
}

// column is one figure of a row.
type column[R any] struct {
	head  string
	value func(R) string
}

var columns = []column[row]{
	{"goroutines", func(r row) string { return fmt.Sprint(r.goroutines) }},
	{"", func(r row) string { return r.name }},
	{"cycles/s", func(r row) string { return fmt.Sprintf("%.0f", r.median(func(s sample) float64 { return s.rate })) }},
	{"ratio", func(r row) string { return fmt.Sprintf("%.2f", r.ratio()) }},
	{"p50", duration(func(s sample) time.Duration { return s.p50 })},
	{"p99", duration(func(s sample) time.Duration { return s.p99 })},
	{"allocs", figure("%.1f", func(s sample) float64 { return s.allocs })},
	{"bytes", figure("%.0f", func(s sample) float64 { return s.bytes })},
	{"commands", figure("%.2f", func(s sample) float64 { return s.commands })},
	{"in scripts", figure("%.2f", func(s sample) float64 { return s.inside })},
	{"Redis µs", figure("%.1f", func(s sample) float64 { return s.server })},
}

func figure(format string, of func(sample) float64) func(row) string {
	return func(r row) string { return fmt.Sprintf(format, r.median(of)) }
}

func duration(of func(sample) time.Duration) func(row) string {
	return func(r row) string {
		d := r.median(func(s sample) float64 { return float64(of(s)) / 1e3 })
		return fmt.Sprintf("%.0f µs", d)
	}
}

// median returns the median of one figure over the rounds.
func (r row) median(of func(sample) float64) float64 {
	values := make([]float64, len(r.samples))
	for i, s := range r.samples {
		values[i] = of(s)
	}
	return median(values)
}

// ratio compares rates round by round, in which both contenders met much the same machine.
func (r row) ratio() float64 {
	values := make([]float64, len(r.samples))
	for i, s := range r.samples {
		values[i] = s.rate / r.base[i].rate
	}
	return median(values)
}

// median sorts values, of which there must be one at least.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

const legend = "A cycle is one acquire and one release. ratio: of cycles/s to the first line's. " +
	"allocs, bytes, commands (sent by the client), in scripts (commands that scripts called) and Redis µs " +
	"(the server's time for the commands sent) are per cycle."

// writeReport writes the uncontended rows.
func writeReport(w io.Writer, about string, rows []row) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", about)
	writeTable(&b, columns, rows)
	fmt.Fprintf(&b, "\n%s\n", legend)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTable writes a table in Markdown.
func writeTable[R any](b *strings.Builder, columns []column[R], rows []R) {
	line := func(cell func(c column[R]) string) {
		for _, c := range columns {
			fmt.Fprintf(b, "| %s ", cell(c))
		}
		b.WriteString("|\n")
	}
	line(func(c column[R]) string { return c.head })
	line(func(c column[R]) string {
		if c.head == "" {
			return ":--"
		}
		return "--:"
	})
	for _, r := range rows {
		line(func(c column[R]) string { return c.value(r) })
	}
}
