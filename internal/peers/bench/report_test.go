package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sampleReport has a row of which nothing could be measured, and bars that are far apart.
func sampleReport() report {
	heads := []head{{"n", 0}, {"", 0}, {"hand-overs/s", 0}, {"longest wait ms", 1}}
	return report{
		Environment: environment{Command: "go run . -only \"a <b>\"", Date: "2026-01-02", Go: "go1.26", System: "linux/amd64", CPUs: 2},
		Tables: []table{{
			Part: "goroutines", Title: "A title", Heads: heads, Legend: "A legend.", Notes: []string{"a [note]"},
			Rows: [][]any{
				{16, "holdfast", 120000., 2.04}, {16, "redislock (1 ms)", 1000., 80.}, {16, "redsync", nil, 3.},
				{64, "holdfast", 90000., 1.}, {64, "redsync", 2000., 4.}, {1, "holdfast", 5., 1.},
			},
		}},
	}
}

func TestReportSurvivesItsFile(t *testing.T) {
	r := sampleReport()
	r.Targets = judgeTargets(r)
	file := filepath.Join(t.TempDir(), "r.json")
	if err := r.save(file); err != nil {
		t.Fatal(err)
	}
	var before, after bytes.Buffer
	if err := r.markdown(&before); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), &after, plan{from: file}); err != nil {
		t.Fatal(err)
	}
	if before.String() != after.String() {
		t.Errorf("got\n%s\nwant\n%s", &after, &before)
	}
	for _, want := range []string{"| 16 | redislock (1 ms) | 1000 | 80.0 |", "| 16 | redsync | – | 3.0 |", "A legend.", "a [note]"} {
		if !strings.Contains(after.String(), want) {
			t.Errorf("there is no %q in\n%s", want, &after)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := `[16,"redsync",null,3]`; !strings.Contains(string(text), want) {
		t.Errorf("there is no %q, a row in one line, in\n%s", want, text)
	}
}

func TestChart(t *testing.T) {
	c := charts[1]
	var b strings.Builder
	if !c.draw(&b, sampleReport()) {
		t.Fatal("nothing was drawn")
	}
	svg := b.String()
	if err := fits([]byte(svg)); err != nil {
		t.Error(err)
	}
	if got := strings.Count(svg, `class="ours"/>`); got != 2 {
		t.Errorf("got %d bars of holdfast's, want 2: there is a group that was not asked for, or one is missing", got)
	}
	if got := strings.Count(svg, `class="theirs"/>`); got != 2 {
		t.Errorf("got %d bars of peers, want 2, as one was not measured", got)
	}
	for _, want := range []string{"120,000", "logarithmic scale", "&lt;b&gt;", "longer is better", "goroutines: 64"} {
		if !strings.Contains(svg, want) {
			t.Errorf("there is no %q in\n%s", want, svg)
		}
	}
	if c.draw(&b, report{}) {
		t.Error("a chart of nothing was drawn")
	}
}

func TestScaleIsLogarithmicBeyondFifty(t *testing.T) {
	bars := func(values ...float64) []barGroup {
		var g barGroup
		for _, v := range values {
			g.bars = append(g.bars, bar{value: v})
		}
		return []barGroup{g}
	}
	length, log := scale(bars(1, 50))
	if log || length(25) != 0.5 || length(50) != 1 {
		t.Errorf("up to 50: logarithmic is %v, half as much is %v long, the most %v", log, length(25), length(50))
	}
	length, log = scale(bars(2, 60, 200))
	if least := length(2); !log || !(least > 0) || length(200) != 1 || !(length(20)-least > 0) ||
		math.Abs((length(200)-length(20))-(length(20)-least)) > 1e-9 {
		t.Errorf("beyond: logarithmic is %v, 2, 20 and 200 are %v, %v and %v long", log, least, length(20), length(200))
	}
}

// fits says what of a chart is no XML, or reaches beyond its room. Characters are taken to be wide.
func fits(svg []byte) error {
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "text" {
			continue
		}
		var text struct {
			X     float64 `xml:"x,attr"`
			Class string  `xml:"class,attr"`
			Text  string  `xml:",chardata"`
		}
		if err := d.DecodeElement(&text, &start); err != nil {
			return err
		}
		room := map[string]float64{"name": barStart - 4}[text.Class]
		if room == 0 {
			room = chartWidth - chartMargin/2
		}
		width := map[string]float64{"title": 10, "quiet": 6.6}[text.Class]
		if width == 0 {
			width = 7.3
		}
		if end := text.X + width*float64(len([]rune(text.Text))); end > room {
			return &tooLong{text.Text, end, room}
		}
	}
}

type tooLong struct {
	text      string
	end, room float64
}

func (e *tooLong) Error() string { return e.text + " is too long" }

func TestTargetsAreJudgedByTheFigures(t *testing.T) {
	r := report{Tables: []table{
		{Part: uncontended, Heads: []head{{"n", 0}, {"connections", 0}, {"", 0}, {"ratio", 2}}, Rows: [][]any{
			{1, "20 (default)", bare, 1.}, {1, "20 (default)", us, 0.95}, {1, "20 (default)", "redsync", 0.475},
			{64, "20 (default)", bare, 1.}, {64, "20 (default)", us, 2.5}, {64, "20 (default)", "redsync", 0.9}, {64, "20 (default)", "rueidislock", 5.},
			{64, "64", us, 0.1}, {64, "64", "redsync", 10.},
		}},
		{Part: "goroutines", Heads: []head{{"n", 0}, {"", 0}, {"longest wait ms", 1}, {"clashes", 0}, {"commands", 2}}, Rows: [][]any{
			{16, us, 4., 0., 0.03}, {16, "holdfast (no local line)", 1., 0., 2.}, {16, "a", 50., 0., 7.}, {16, "b", 1., 3., 7.}, {64, us, 1., 0., 0.2},
		}},
		{Part: "redlock", Heads: []head{{"servers", 0}, {"n", 0}, {"", 0}, {"lock ratio", 2}}, Rows: [][]any{
			{"all healthy", 1, us, 1.1}, {"all healthy", 8, us, 1.7},
		}},
		{Part: "bulk: stop", Heads: []head{{"stop", 0}, {"", 0}, {"failed after 1 s", 0}}, Rows: [][]any{
			{"1s", bare, 99.}, {"1s", us, 0.}, {"2s", us, 7.},
		}},
		{Part: "mix", Heads: []head{{"connections", 0}, {"client", 0}, {"", 0}, {"p99 ms", 1}}, Rows: [][]any{
			{20, "default", polling, 1.}, {20, "default", us, 2.}, {20, "default", "a", 10.},
			{20, "ContextTimeoutEnabled", us, 3.}, {20, "ContextTimeoutEnabled", "a", 5.}, {20, "ContextTimeoutEnabled", "b", 9.},
		}},
		{Part: "tasks", Heads: []head{{"load", 0}, {"servers", 0}, {"", 0}, {"runs/ideal", 3}}, Rows: [][]any{
			{"burst", 1, us, nil}, {"backlog", 1, bare, 0.9}, {"backlog", 1, us, 0.98}, {"backlog", 3, us, 0.96},
		}},
	}}
	got := map[string]verdict{}
	for _, v := range judgeTargets(r) {
		about, _, _ := strings.Cut(v.Target, ": at ")
		got[about] = v
	}
	for about, want := range map[string]verdict{
		"uncontended, n = 1, default connections: cycles/s, of the floor's":      {Got: 0.95, Met: true},
		"uncontended, n = 64, default connections: cycles/s, of the floor's":     {Got: 2.5, Met: true},
		"uncontended, n = 64, default connections: cycles/s, of the best peer's": {Got: 0.5, Met: false},
		"uncontended, n = 1, default connections: cycles/s, of the best peer's":  {Got: 2, Met: true},
		"in bulk, stops: errors from the second second on":                       {Got: 7, Met: false},
		"a service's mix, 20 connections: p99 of an acquire, of the best peer's": {Got: 0.6, Met: false},
		"hot key, one process, 16 goroutines: longest wait, of the best peer's":  {Got: 0.08, Met: true},
		"hot key, one process, 16 to 256: commands for each hand-over":           {Got: 0.2, Met: false},
		"RedLock, all healthy: median time to lock, of the floor's":              {Got: 1.7, Met: false},
		"tasks, 10,000 and 40,000 of one key: runs, of the ideal":                {Got: 0.96, Met: true},
	} {
		if v, ok := got[about]; !ok || v.Got != want.Got || v.Met != want.Met {
			t.Errorf("%s: got %v, want %v and %v", about, v, want.Got, want.Met)
		}
	}
	if len(got) != 10 {
		t.Errorf("got %v, want 10: what was not measured is not judged", got)
	}
}
