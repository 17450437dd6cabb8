package sqlfence

import (
	"context"
	"time"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine of the call, with its context, so they must return quickly, and several may run at once. Guarded and Refused
// report every guard, including those of [Fence.Advance] and of gormfence.
type Trace struct {
	// Guarded: a guard succeeded. Elapsed is how long it took, which is usually the wait for other transactions.
	Guarded func(context.Context, Event)
	// Refused: a token was stale. Err is the *StaleError, and Elapsed is how long the guard took.
	Refused func(context.Context, Event)
	// Retried: a transaction is about to run again because of Err. Attempts is how many attempts have failed so far.
	Retried func(context.Context, Event)
	// Unknown: the outcome of a commit is unknown. Err matches ErrCommitUnknown.
	Unknown func(context.Context, Event)
}

// Event describes what a [Trace] hook reports. Except for Marks, fields that the hook's comment does not name are zero.
type Event struct {
	Marks    []Mark // sorted by resource; nil for Prune. Hooks must not change it
	Elapsed  time.Duration
	Attempts int
	Err      error
}

type traces []*Trace

// emit calls one hook of every trace.
func (ts traces) emit(ctx context.Context, hook func(*Trace) func(context.Context, Event), e Event) {
	for _, t := range ts {
		if f := hook(t); f != nil {
			f(ctx, e)
		}
	}
}

func guarded(t *Trace) func(context.Context, Event) { return t.Guarded }
func refused(t *Trace) func(context.Context, Event) { return t.Refused }
func retried(t *Trace) func(context.Context, Event) { return t.Retried }
func unknown(t *Trace) func(context.Context, Event) { return t.Unknown }

// WithTrace adds hooks, for logs and metrics. Default: none.
func WithTrace(t *Trace) Option {
	return option(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		c.traces = append(c.traces, t)
		return nil
	})
}
