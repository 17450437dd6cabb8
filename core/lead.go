package holdfast

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	leadAgain     = time.Second // after a failure
	leadAgainMost = 30 * time.Second
	leadWell      = time.Minute // a term that lasted as long was no failure to start
)

// Lead elects a leader: it runs fn on one replica at a time. Every replica calls Lead. One of them gets the lock of
// name and runs fn, and the others wait in line. fn must return when its context ends.
//
//   - If fn returns nil, Lead releases the lock and returns the error of [Lock.Release], usually nil.
//   - If fn returns an error, Lead releases the lock, reports the error to Ended of [Trace], pauses and waits in line
//     again. The pause is about 1 s, doubles with each further failure up to 30 s, and is 1 s again after a term of a
//     minute. An outage of Redis counts as a failure.
//   - If the leadership is lost, fn's context ends and its cause matches [ErrLost]. Once fn has returned, Lead
//     waits in line again at once, and reports no error of fn.
//   - If ctx ends or [Locker.Shutdown] begins, fn's context ends too. Once fn has returned, Lead releases the lock and
//     returns an error that matches ctx.Err(), or [ErrClosed], and ErrLost too if the leadership was lost before.
//   - If fn panics, Lead releases the lock and the panic continues.
//
// After a release the next replica leads within a round trip, after a crash when the lease has expired. Lead neither
// releases nor returns while fn runs. But after a loss, or a forced Shutdown, an fn that ignores its context may run
// alongside the next leader. Let it write through package sqlfence, which then refuses its writes. The number of the
// term is the fencing token.
//
// Other errors are [ErrSelfDeadlock] and [ErrInvalid], also for [WithoutRenewal], [WithReentryID], [WithShared], a
// [WithLimit] above 1, and a [WithWait] among opts. One given to New has no effect here.
func (l *Locker) Lead(ctx context.Context, name string, fn func(context.Context) error, opts ...CallOption) error {
	if ctx == nil {
		return invalid("nil context")
	}
	if fn == nil {
		return invalid("Lead(%q) without a function", name)
	}
	own, err := configure(l, opts, name)
	if err != nil {
		return err
	}
	cfg := *own
	switch {
	case cfg.waitSet:
		return invalid("Lead waits until its context ends, WithWait contradicts it")
	case cfg.noRenew:
		return invalid("Lead renews, WithoutRenewal contradicts it")
	case cfg.limit > 1 || cfg.reentryID != "":
		return invalid("Lead is for one at a time, WithLimit, WithShared and WithReentryID are not")
	}
	cfg.reentrant = false
	stored, err := l.stored(name)
	if err != nil {
		return err
	}
	for pause := leadAgain; ; {
		t := new(term)
		one := cfg
		one.traces = t.traces(cfg.traces)
		lock, err := l.take(ctx, stored, &one, -1, false)
		if err == nil {
			began := l.env.Now().Mono
			again, err := t.lead(ctx, lock, fn)
			if !again {
				return err
			}
			if l.env.Now().Mono-began >= leadWell {
				pause = leadAgain
			}
			if err == nil {
				continue
			}
		} else if ctx.Err() != nil || !errors.Is(err, ErrUnavailable) {
			return err
		}
		if l.env.Await(ctx, pause-rand.N(pause/4), l.env.Gate.Closing) == timing.Ended {
			return &opError{act: "lead", key: stored.Lock, outcome: ctx.Err()}
		}
		pause = min(2*pause, leadAgainMost)
	}
}

// term is one leadership.
type term struct{ failed atomic.Pointer[error] }

// traces are those of a lock that a leader holds: it holds for as long as it can, and why it stopped is part of the end.
func (t *term) traces(all traces) traces {
	led := make(traces, len(all))
	for i, trace := range all {
		c := *trace
		c.LongHold = nil
		if c.Ended != nil {
			c.Ended = func(e Event) {
				if failed := t.failed.Load(); failed != nil {
					e.Err = both(e.Err, *failed)
				}
				trace.Ended(e)
			}
		}
		led[i] = &c
	}
	return led
}

// lead runs fn. It tells whether to stand again, and why after a pause; or what Lead returns.
func (t *term) lead(ctx context.Context, lk *Lock, fn func(context.Context) error) (again bool, err error) {
	l := lk.hold.locker
	fail := &opError{act: "lead", key: lk.Key(), outcome: ErrClosed}
	outer, end := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-l.env.Gate.Closing:
			end(fail)
		case <-outer.Done():
		}
	}()
	defer func() {
		end(nil)
		<-done
	}()
	inner, lost, released := lk.Context(outer), error(nil), error(nil)
	func() {
		defer func() {
			lost = lk.Err()
			// That it ended because its context did is no failure.
			if failed := err; failed != nil && (inner.Err() == nil || !errors.Is(failed, inner.Err()) && !errors.Is(failed, context.Cause(inner))) {
				t.failed.Store(&failed)
			}
			// Its context may have ended, and the next leader waits for the release.
			released = lk.release(context.WithoutCancel(ctx))
		}()
		err = fn(inner)
	}()
	switch {
	case l.env.Gate.Closed():
		fail.cause = lost
		return false, fail
	case ctx.Err() != nil:
		fail.outcome, fail.cause = ctx.Err(), lost
		return false, fail
	case lost != nil:
		return true, nil
	case err == nil:
		return false, released
	}
	return true, err
}
