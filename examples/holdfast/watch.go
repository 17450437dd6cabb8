package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// clearScreen takes a terminal's cursor home and clears what was there.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

// watch draws the table again and again until ctx ends. The first look must succeed, at least in part, as the command
// line may be wrong; after that an outage is shown, and watched until it is over.
func (a *app) watch(ctx context.Context, client redis.UniversalClient, s settings, pattern string) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		all, err := rows(ctx, client, s, pattern)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && all == nil && first {
			return err
		}
		if _, err := a.stdout.Write(a.frame(all, err, pattern)); err != nil {
			return err // nobody reads on
		}
		timer.Reset(s.every) // from now on: a look may take longer than that
	}
}

// frame is what is drawn at once, so that it does not flicker.
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
	fmt.Fprintf(&b, "%s  %s: %d locks, %d held, %d waiting\n\n", time.Now().Format(time.TimeOnly), printable(pattern), len(all), taken, waiting)
	if err == nil || all != nil {
		_ = writeTable(&b, all) // a buffer takes all
	}
	errs := []error{err}
	if p := (*partial)(nil); errors.As(err, &p) {
		errs = p.errs
	}
	for _, one := range errs {
		if one != nil {
			fmt.Fprintf(&b, "\nerror: %s\n", explain(one))
		}
	}
	if !a.terminal {
		b.WriteByte('\n')
	}
	return b.Bytes()
}
