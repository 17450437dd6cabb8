package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// toll is what the guard costs in one database.
type toll struct {
	plain, guarded float64 // µs that a transaction takes
}

func (t toll) trouble() (int, string) { return 0, "" }

var tollColumns = []column[toll]{
	typical("plain µs", 0, func(t toll) float64 { return t.plain }),
	typical("guarded µs", 0, func(t toll) float64 { return t.guarded }),
	typical("guarded/plain", 2, func(t toll) float64 { return t.guarded / t.plain }),
}

const tollLegend = "A transaction reads a row and writes it back; the guarded one is sqlfence's WithTx. Medians. The servers do " +
	"not flush at a commit, which makes the guard look dear."

// sqltest has the drivers and starts the databases; its benchmark is the measurement.
const (
	sqltest        = "../../sqltest"
	guardBenchmark = "BenchmarkGuard"
	plainMetric    = "µs/plain"
	guardedMetric  = "µs/guarded"
)

// guard measures sqlfence.
func (p plan) guard(ctx context.Context, _ *server) (table, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+guardBenchmark+"$", "-benchtime", "1000x", "-v", ".")
	cmd.Dir, cmd.Env = sqltest, append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return table{}, fmt.Errorf("%w:\n%s", err, out)
	}
	rows, notes, err := parseGuard(out)
	if err != nil {
		return table{}, err
	}
	t := tabulate("A transaction with sqlfence's guard, and without, in turns.", []string{"database", "isolation"}, tollColumns, rows, tollLegend)
	t.Notes = notes
	return t, nil
}

// parseGuard reads the output of the benchmark. A database that is not installed is skipped there, and a note here.
func parseGuard(out []byte) (rows []row[toll], notes []string, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "--- SKIP: "+guardBenchmark+"/"); ok {
			name, _, _ = strings.Cut(name, " ")
			notes = append(notes, name+": not installed.")
			continue
		}
		name, ok := strings.CutPrefix(line, guardBenchmark+"/")
		fields := strings.Fields(name)
		if !ok || len(fields) < 2 { // the name alone comes before
			continue
		}
		engine, level, _ := strings.Cut(fields[0], "/")
		if i := strings.LastIndex(level, "-"); i > 0 && strings.Trim(level[i+1:], "0123456789") == "" {
			level = level[:i] // GOMAXPROCS
		}
		t := toll{plain: math.NaN(), guarded: math.NaN()}
		for i := 3; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i-1], 64)
			if err != nil {
				return nil, nil, fmt.Errorf("the benchmark said %q: %w", line, err)
			}
			switch fields[i] {
			case plainMetric:
				t.plain = v
			case guardedMetric:
				t.guarded = v
			}
		}
		rows = append(rows, row[toll]{labels: []any{engine, level}, samples: []toll{t}})
	}
	if len(rows)+len(notes) == 0 {
		return nil, nil, fmt.Errorf("%s measured nothing:\n%s", guardBenchmark, out)
	}
	return rows, notes, nil
}
