package sqlfence

import (
	"context"
	"time"
)

// Trace is a set of hooks, as [holdfast.Trace] is. Any may be nil. They run on the goroutine of the call, with its context, and
// must return soon.
type Trace struct {
	// Guarded: a guard went through; Elapsed is what it took, which is mostly the wait for other transactions.
	Guarded func(context.Context, Event)
	// Refused: a token was stale; Err is the *StaleError. Elapsed is as for Guarded.
	Refused func(context.Context, Event)
	// Retried: a transaction is run again because of Err; Attempts is how many there have been.
	Retried func(context.Context, Event)
	// Unknown: Err, that of a COMMIT, matches ErrCommitUnknown.
	Unknown func(context.Context, Event)
}

// Event is what a [Trace] hook is told. Fields that a hook's comment does not name are zero, but for Marks.
type Event struct {
	Marks    []Mark // in the order of their resources; not to be changed
	Elapsed  time.Duration
	Attempts int
	Err      error
}

func (t *Trace) emit(ctx context.Context, hook func(*Trace) func(context.Context, Event), e Event) {
	if t == nil {
		return
	}
	if f := hook(t); f != nil {
		f(ctx, e)
	}
}

func guarded(t *Trace) func(context.Context, Event) { return t.Guarded }
func refused(t *Trace) func(context.Context, Event) { return t.Refused }
func retried(t *Trace) func(context.Context, Event) { return t.Retried }
func unknown(t *Trace) func(context.Context, Event) { return t.Unknown }

// WithTrace sets the hooks of a [Fence]. Default: none.
func WithTrace(t *Trace) Option {
	return option(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		c.trace = t
		return nil
	})
}
