package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// table is what one part has measured.
type table struct {
	Part   string   `json:"part"`
	Title  string   `json:"title"`
	Heads  []head   `json:"columns"`
	Rows   [][]any  `json:"rows"` // numbers are float64 or int; nil for what could not be measured
	Notes  []string `json:"notes,omitempty"`
	Legend string   `json:"legend,omitempty"`
}

type head struct {
	Name   string `json:"name"`
	Digits int    `json:"digits"` // after the point, for people
}

// cell is a figure as JSON can hold it.
func cell(figure float64) any {
	if math.IsNaN(figure) || math.IsInf(figure, 0) {
		return nil
	}
	return figure
}

func (t *table) complain(labels []any, what string) {
	if what != "" {
		t.Notes = append(t.Notes, strings.Trim(fmt.Sprintln(labels...), "\n")+": "+strings.ReplaceAll(what, "\n", "; ")+".")
	}
}

// column returns where a column is, or -1.
func (t table) column(name string) int {
	return slices.IndexFunc(t.Heads, func(h head) bool { return h.Name == name })
}

// get returns a figure of a row, or not a number.
func (t table) get(row []any, name string) float64 {
	if i := t.column(name); i >= 0 && i < len(row) {
		switch v := row[i].(type) {
		case float64:
			return v
		case int:
			return float64(v)
		}
	}
	return math.NaN()
}

// text returns the cell of a row as people read it.
func (t table) text(row []any, name string) string {
	i := t.column(name)
	if i < 0 || i >= len(row) {
		return ""
	}
	switch v := row[i].(type) {
	case nil:
		return "–"
	case float64:
		return fmt.Sprintf("%.*f", t.Heads[i].Digits, v)
	default:
		return fmt.Sprint(v)
	}
}

// markdown writes the table, in sections of the same first label where that is text.
func (t table) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", t.Part, t.Title)
	rule := ""
	for _, h := range t.Heads {
		fmt.Fprintf(&b, "| %s ", h.Name)
		if h.Name == "" {
			rule += "| :-- "
		} else {
			rule += "| --: "
		}
	}
	fmt.Fprintf(&b, "|\n%s|\n", rule)
	for _, row := range t.Rows {
		for _, h := range t.Heads {
			fmt.Fprintf(&b, "| %s ", t.text(row, h.Name))
		}
		b.WriteString("|\n")
	}
	for _, s := range append(slices.Clone(t.Notes), t.Legend) {
		if s != "" {
			fmt.Fprintf(&b, "\n%s\n", s)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
