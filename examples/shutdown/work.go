package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// finished is a variable so that a test can replace it.
var finished = func() <-chan time.Time { return time.After(500 * time.Millisecond) }

// work stands for what a service does. It ends when its lock is lost, but not at the signal: shutDown turns the signal into
// an order of steps.
func work(ctx context.Context, out io.Writer, what string) error {
	fmt.Fprintln(out, what, "begins")
	select {
	case <-finished():
	case <-ctx.Done():
		fmt.Fprintln(out, what, "is cut off:", context.Cause(ctx))
		return context.Cause(ctx)
	}
	fmt.Fprintln(out, what, "ends")
	return nil
}
