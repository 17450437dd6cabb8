package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
)

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
			return fmt.Errorf("%s is too long", text.Text)
		}
	}
}

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
		"hot key, one process, 16 goroutines: longest wait, of the best peer's":  {Got: 0.08, Met: true},
		"hot key, one process, 16 to 256: commands for each hand-over":           {Got: 0.2, Met: false},
		"RedLock, all healthy: median time to lock, of the floor's":              {Got: 1.7, Met: false},
	} {
		if v, ok := got[about]; !ok || v.Got != want.Got || v.Met != want.Met {
			t.Errorf("%s: got %v, want %v and %v", about, v, want.Got, want.Met)
		}
	}
	if len(got) != 7 {
		t.Errorf("got %v, want 7: what was not measured is not judged", got)
	}
}
