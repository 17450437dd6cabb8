package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// report is all that was measured.
type report struct {
	Environment environment `json:"environment"`
	Targets     []verdict   `json:"targets,omitempty"`
	Tables      []table     `json:"tables"`
}

func (r report) introduce(w io.Writer) error {
	_, err := fmt.Fprintf(w, "# Numbers\n\n`%s` in internal/peers/bench; %s.\n\nAll take turns on one machine. Compare the figures of one "+
		"run with each other and not with those of another.\n", r.Environment.Command, r.Environment.sentence())
	return err
}

// markdown writes all of it.
func (r report) markdown(w io.Writer) error {
	if err := r.introduce(w); err != nil {
		return err
	}
	for _, t := range r.Tables {
		if err := t.markdown(w); err != nil {
			return err
		}
	}
	return r.conclude(w)
}

// conclude writes the targets.
func (r report) conclude(w io.Writer) error {
	if len(r.Targets) == 0 {
		return nil
	}
	return verdictTable(r.Targets).markdown(w)
}

// table returns the table of a part; without one it is empty.
func (r report) table(part string) table {
	for _, t := range r.Tables {
		if t.Part == part {
			return t
		}
	}
	return table{}
}

// flat are the arrays without others inside. The rows of tables are to stay on one line, for people and for diffs.
var flat = regexp.MustCompile(`\[[^\[\]{}]*\]`)
var breaks = regexp.MustCompile(`\n\s*`)

func (r report) save(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	text = flat.ReplaceAllFunc(text, func(array []byte) []byte { return breaks.ReplaceAll(array, nil) })
	return write(file, append(text, '\n'))
}

// write makes the directory too.
func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func read(file string) (r report, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// draw writes those charts into dir of which the parts were measured.
func (r report) draw(dir string) error {
	for _, c := range charts {
		var b strings.Builder
		if !c.draw(&b, r) {
			continue
		}
		if err := write(filepath.Join(dir, c.file), []byte(b.String())); err != nil {
			return err
		}
	}
	return nil
}
