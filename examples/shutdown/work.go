package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// finished is for a test to replace.
var finished = func() <-chan time.Time { return time.After(500 * time.Millisecond) }

// work stands for what a service does. It ends with its lock, and not at the signal: that is for shutDown to turn into an
// order.
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
