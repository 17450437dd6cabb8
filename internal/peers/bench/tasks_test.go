//go:build !without_asynq

package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// The figures are those of a moment on a busy machine: what is checked is that there are some, that no two tasks of one key ran
// together, and that none was lost count of.
func TestTasksTableHasEveryLoad(t *testing.T) {
	servertest.Redis(t) // or there is nothing to measure on
	for _, load := range []struct {
		taskPlan
		rows   []string
		figure string
		least  float64
	}{
		{taskPlan{burst: 3}, []string{"burst 3 1 floor", "burst 3 1 holdfast", "burst 3 2 holdfast"}, "time/ideal", 1},
		{taskPlan{requests: 2}, []string{"request 2 1 holdfast", "request 2 2 holdfast"}, "p50 ms", 0.01},
		{taskPlan{backlogs: []int{20}}, []string{"backlog 20 1 floor", "backlog 20 1 holdfast", "backlog 20 2 holdfast"}, "runs/ideal", 0.01},
	} {
		t.Run(load.rows[0], func(t *testing.T) {
			t.Parallel()
			load.servers, load.takes = []int{1, 2}, 5*time.Millisecond
			var table table
			idle := func(row []any) bool { return table.get(row, "runs/ideal") == 0 }
			for window := 2 * time.Second; table.Rows == nil || slices.ContainsFunc(table.Rows, idle) && window < time.Minute; window *= 4 {
				var err error
				if table, err = load.measure(t.Context(), 1, window); err != nil {
					t.Fatal(err)
				}
			}
			var rows []string
			for _, row := range table.Rows {
				rows = append(rows, strings.TrimSpace(fmt.Sprintln(row[:4]...)))
				if table.get(row, "failed") != 0 || table.get(row, "clashes") != 0 || !(table.get(row, "Redis ms") >= 0) || !(table.get(row, load.figure) >= load.least) {
					t.Errorf("got %v, want %s of at least %v, no failures and no clashes; %q", row, load.figure, load.least, table.Notes)
				}
			}
			if !slices.Equal(rows, load.rows) {
				t.Errorf("got rows of %q, want %q", rows, load.rows)
			}
		})
	}
}

func TestEffortOfServers(t *testing.T) {
	ms := int64(time.Millisecond)
	toils := []toil{
		{Deferrals: 3, Stints: []stint{{0, 10 * ms, 20 * ms}, {2, 40 * ms, 50 * ms}}},
		{Deferrals: 1, Stints: []stint{{1, 20 * ms, 30 * ms}}},
	}
	sent := []int64{1, 1, 1, 1}
	burst := demand{hot: 4, takes: 10 * time.Millisecond}
	if e := burst.judge(sent, toils, 0, 60*ms, 1); e.time != 1.5 || e.deferrals != 1 || e.clashes != 0 || e.failures != 0 || e.left != 1 || !math.IsNaN(e.runs) || !math.IsNaN(e.worst) {
		t.Errorf("a task has not run: got %+v", e)
	}
	for _, left := range []int{0, 2} {
		if e := burst.judge(sent, toils, 0, 60*ms, left); e.failures != 1 || e.reason == "" {
			t.Errorf("3 of 4 ran, and %d are left: got %+v", left, e)
		}
	}
	toils[1].Stints = append(toils[1].Stints, stint{3, 29 * ms, 39 * ms})
	if e := burst.judge(sent, toils, 0, 60*ms, 0); e.time != 1.25 || e.clashes != 1 || e.failures != 0 {
		t.Errorf("two ran together: got %+v", e)
	}
	toils[0].Stints = append(toils[0].Stints, stint{3, 50 * ms, 60 * ms})
	if e := burst.judge(sent, toils, 0, 60*ms, 0); e.failures != 1 {
		t.Errorf("a task ran twice: got %+v", e)
	}

	toils = []toil{{Stints: []stint{{0, 0, 10 * ms}, {1, 55 * ms, 65 * ms}, {3, 12 * ms, 12 * ms}}}}
	backlog := demand{hot: 3, cold: 2, takes: 10 * time.Millisecond}
	if e := backlog.judge([]int64{0, 0, 0, 10 * ms, 30 * ms}, toils, 0, 60*ms, 2); math.Abs(e.runs-1./3) > 1e-9 || e.p50 != 2 || e.p99 != 30 || e.worst != 30 ||
		e.failures != 0 || !math.IsNaN(e.time) {
		t.Errorf("a cold task has not started, and a hot one has not ended in time: got %+v", e)
	}
}

// What is measured is what newcomers copy.
func TestServersAreSetUpAsTheREADMEHasIt(t *testing.T) {
	for _, file := range []string{"toil.go", "../../../README.md", "../../../asynqlock/doc.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := "guard.Config(asynq.Config{Concurrency: 10})"; !bytes.Contains(source, []byte(want)) {
			t.Errorf("%s has no %s", file, want)
		}
	}
}
