package sqlfence

import (
	"context"
	"time"
)

// Trace is a set of hooks, any of which may be nil. They run on the goroutine of the call, with its context, so they must return
// quickly, and several may run at once.
type Trace struct {
	// Guarded: a guard succeeded. Elapsed is how long it took, usually the wait for other transactions.
	Guarded func(context.Context, Event)
	// Refused: a token was stale. Err is the *StaleError, Elapsed as above.
	Refused func(context.Context, Event)
	// Retried: a transaction is about to run again because of Err. Attempts is how many failed.
	Retried func(context.Context, Event)
	// Unknown: Err is an ErrCommitUnknown.
	Unknown func(context.Context, Event)
}

// Event is what a [Trace] hook reports. Fields other than Marks are zero unless the hook's comment names them.
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
