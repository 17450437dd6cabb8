package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// chart is a bar for each row of a table, in groups.
type chart struct {
	file, part, value string
	groups            []string // the labels that make a group
	only              []string // groups, their labels with blanks between; empty for all
	title, unit       string
	group             string // a heading, with %s for each label
	less              bool   // shorter bars are better
}

// bar is one row of a chart.
type bar struct {
	name, text string
	value      float64
}

// barGroup is bars under one heading.
type barGroup struct {
	name string
	bars []bar
}

// collect takes the bars from the tables, of clients as users have them. What could not be measured has none.
func (c chart) collect(r report) (groups []barGroup) {
	t := r.table(c.part)
	for _, row := range t.Rows {
		var labels []string
		heading := c.group
		for _, g := range c.groups {
			labels = append(labels, t.text(row, g))
			heading = strings.Replace(heading, "%s", t.text(row, g), 1)
		}
		b := bar{t.text(row, ""), t.text(row, c.value), t.get(row, c.value)}
		if len(c.only) > 0 && !slices.Contains(c.only, strings.Join(labels, " ")) || !(b.value > 0) || !through(clients[0].name)(t, row) {
			continue
		}
		if len(groups) == 0 || groups[len(groups)-1].name != heading {
			groups = append(groups, barGroup{name: heading})
		}
		last := &groups[len(groups)-1]
		last.bars = append(last.bars, b)
	}
	return groups
}

// logarithmic is above which ratio of the longest bar to the shortest the scale is one.
const logarithmic = 50

// scale returns how long the bar of a value is, from 0 to 1.
func scale(groups []barGroup) (length func(float64) float64, log bool) {
	least, most := math.Inf(1), 0.0
	for _, g := range groups {
		for _, b := range g.bars {
			least, most = min(least, b.value), max(most, b.value)
		}
	}
	if most/least <= logarithmic {
		return func(v float64) float64 { return v / most }, false
	}
	floor := math.Pow(10, math.Floor(math.Log10(least))) / 2 // so that the shortest is still to be seen
	return func(v float64) float64 { return math.Log(v/floor) / math.Log(most/floor) }, true
}

// Lengths are in pixels.
const (
	chartWidth  = 760
	chartMargin = 16
	barStart    = 200
	barRoom     = 460 // beyond it there is room for the figure
	barStep     = 22
	barHeight   = 15
)

// The colours are legible on both grounds; the chart brings its own, since the page's theme may be another than the system's.
const chartStyle = `<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.quiet { fill: #59636e; font-size: 12px }
.group { font-weight: 600 }
.ours { fill: #0969da }
.theirs { fill: #9aa4af }
.ground { fill: #ffffff; stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet { fill: #9198a1 }
.ours { fill: #4493f8 }
.theirs { fill: #656c76 }
.ground { fill: #0d1117; stroke: #3d444d }
}
</style>
`

// draw writes the chart, and returns false where nothing of it was measured.
func (c chart) draw(w *strings.Builder, r report) bool {
	groups := c.collect(r)
	if len(groups) == 0 {
		return false
	}
	length, log := scale(groups)
	better := "longer is better"
	if c.less {
		better = "shorter is better"
	}
	if log {
		better += ", logarithmic scale"
	}

	var body strings.Builder
	y := chartMargin + 16
	text := func(x int, class, s string) {
		fmt.Fprintf(&body, "<text x=\"%d\" y=\"%d\" class=%q>%s</text>\n", x, y, class, html.EscapeString(s))
	}
	text(chartMargin, "title", c.title)
	y += 20
	text(chartMargin, "quiet", c.unit+"; "+better)
	for _, g := range groups {
		y += 28
		text(chartMargin, "group", g.name)
		y += 6
		for _, b := range g.bars {
			class := "theirs"
			if strings.HasPrefix(b.name, "holdfast") {
				class = "ours"
			}
			long := max(length(b.value)*barRoom, 1)
			y += barStep
			text(chartMargin, "name", b.name)
			fmt.Fprintf(&body, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\" class=%q/>\n",
				barStart, y-12, long, barHeight, class)
			text(barStart+int(long)+6, "figure", grouped(b.text))
		}
	}
	e := r.Environment
	y += 30
	text(chartMargin, "quiet", "internal/peers/bench: "+e.Command)
	y += 17
	text(chartMargin, "quiet", fmt.Sprintf("%s, %s, %s on %d CPUs (%s)", e.Date, e.Redis, e.Go, e.CPUs, e.System))
	height := y + chartMargin

	fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(w, "<title>%s</title>\n%s", html.EscapeString(c.title+": "+c.unit), chartStyle)
	fmt.Fprintf(w, "<rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"6\" class=\"ground\"/>\n", chartWidth-1, height-1)
	w.WriteString(body.String() + "</svg>\n")
	return true
}

// grouped puts a comma before every three digits of a number that many have.
func grouped(number string) string {
	whole, rest, _ := strings.Cut(number, ".")
	var b strings.Builder
	for i, d := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	if rest != "" {
		b.WriteString("." + rest)
	}
	return b.String()
}
