package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// clearScreen moves the cursor home and clears the terminal.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

// watch draws the table again and again until ctx ends. The first read must succeed at least in part, because the command
// line might be wrong. After that an outage is shown, and watch goes on through it.
func (a *app) watch(ctx context.Context, on masters, s *settings, args []string) error {
	pattern := patternOf(args)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		all, err := on.rows(ctx, s, pattern)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && all == nil && first {
			return err
		}
		frame := a.frame
		if s.json {
			frame = jsonFrame
		}
		if _, err := a.stdout.Write(frame(all, err, pattern)); err != nil {
			return err // nobody reads the output any more
		}
		timer.Reset(s.every) // counted from here, because a read can take longer than that
	}
}

// aroundTable is how many lines of the screen are not for rows: a title and a blank line, the head, the count of rows left
// out, and the line of the cursor.
const aroundTable = 5

// busiest returns n rows, in their order: first those that are held or waited for, then as many others as fit.
func busiest(all []row, n int) []row {
	busy := func(r row) bool { return r.State != free || r.Waiting > 0 }
	idle := n
	for _, r := range all {
		if busy(r) {
			idle--
		}
	}
	var some []row
	for _, r := range all {
		switch {
		case len(some) == n:
		case busy(r):
			some = append(some, r)
		case idle > 0:
			idle--
			some = append(some, r)
		}
	}
	return some
}

// frame returns one picture, to be written at once so that it does not flicker. On a terminal it fits the window.
func (a *app) frame(all []row, err error, pattern string) []byte {
	var b bytes.Buffer
	if a.terminal {
		b.WriteString(clearScreen)
	}
	taken, waiting := 0, 0
	for _, r := range all {
		if r.State == held || r.State == foreign {
			taken++
		}
		waiting += r.Waiting
	}
	errs := errorsOf(err)
	columns, lines := 0, 0
	if a.terminal && a.size != nil {
		columns, lines = a.size()
	}
	title := fmt.Sprintf("%s  %s: %d locks, %d held, %d waiting", time.Now().Format(time.TimeOnly), printable(pattern), len(all), taken, waiting)
	rest := 0
	if most := lines - aroundTable - 2*len(errs); lines > 0 && len(all) > max(1, most) {
		all, rest = busiest(all, max(1, most)), len(all)-max(1, most)
	}
	table := cells(all)
	if columns > 0 {
		title, table = shorten(title, columns), fit(table, columns)
	}
	fmt.Fprintf(&b, "%s\n\n", title)
	if err == nil || all != nil {
		_ = writeTable(&b, table) // a buffer never fails
	}
	if rest > 0 {
		fmt.Fprintf(&b, "and %d more, see ls\n", rest)
	}
	for _, one := range errs {
		fmt.Fprintf(&b, "\nerror: %s\n", explain(one))
	}
	if !a.terminal {
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// jsonFrame is a frame as one line of JSON.
func jsonFrame(all []row, err error, _ string) []byte {
	frame := struct {
		At     time.Time `json:"at"`
		Locks  []row     `json:"locks"`
		Errors []string  `json:"errors,omitempty"`
	}{At: time.Now(), Locks: append([]row{}, all...)}
	for _, one := range errorsOf(err) {
		frame.Errors = append(frame.Errors, explain(one))
	}
	line, _ := json.Marshal(frame) // which has nothing that JSON lacks
	return append(line, '\n')
}
