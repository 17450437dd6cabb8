package holdfast

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	leadAgain     = time.Second // after a failure
	leadAgainMost = 30 * time.Second
	leadWell      = time.Minute // a term that lasted as long was no failure to start
)

// Lead elects a leader: it runs fn on one replica at a time, for example a poller, a consumer or the relay of an outbox.
// Every replica calls Lead. One of them gets the lock of name and runs fn, and the others wait in line. fn must return
// when its context ends.
//
//   - If fn returns nil while it leads, Lead releases the lock and returns the error of [Lock.Release], usually nil: this
//     replica is done.
//   - If fn returns an error, Lead releases the lock, and the next replica in line leads within a round trip. Lead then
//     pauses and waits in line again. The pause is 1 s, doubles with each further failure up to 30 s, and is shortened by
//     a random part of up to a quarter. After a term of at least a minute it starts at 1 s again. The error goes to
//     Released of [Trace].
//   - If the leadership is lost while fn runs, fn's context ends and its cause matches [ErrLost]. Once fn has returned, even
//     with nil, Lead waits in line again at once.
//   - If Redis is unavailable, Lead keeps trying, with the same pauses.
//   - If ctx ends or [Locker.Shutdown] begins, fn's context ends too. Once fn has returned, whatever it returned, Lead
//     releases the lock and returns an error that matches ctx.Err(), or [ErrClosed].
//   - If fn panics, Lead releases the lock and the panic continues.
//
// Lead neither releases nor returns while fn runs. But after a loss, or a forced Shutdown, an fn that ignores its context may
// run alongside the next leader. Let it write through package sqlfence, which then refuses its writes; the number of the term
// is the fencing token, Held(ctx)[0].Token(). [Locker.Inspect] shows the leader's [WithLabel]. After a crash the next replica
// leads when the lease has expired, after 15 s by default, see [WithTTL].
//
// Errors: one that matches ctx.Err(); [ErrClosed]; [ErrSelfDeadlock] if ctx already holds the lock; those of [Lock.Release]
// after fn returned nil, with [ErrLost] only for a loss that the release was the first to find; [ErrInvalid]. ErrInvalid
// includes the options that contradict Lead: [WithoutRenewal], [WithReentryID], [WithShared], a [WithLimit] above 1, and a
// [WithWait] among opts (one given to New has no effect here). If New was given WithLimit or WithShared, override it with
// WithLimit(1).
func (l *Locker) Lead(ctx context.Context, name string, fn func(context.Context) error, opts ...CallOption) error {
	if ctx == nil {
		return invalid("nil context")
	}
	if fn == nil {
		return invalid("Lead(%q) without a function", name)
	}
	own, err := configure(l, opts)
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
	cfg.reentrant, cfg.leads = false, true
	stored, err := l.stored(name)
	if err != nil {
		return err
	}
	for pause := leadAgain; ; {
		lock, err := l.take(ctx, stored, &cfg, -1)
		if err == nil {
			began := l.env.Now().Mono
			again, err := lock.lead(ctx, fn)
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
		if l.env.Await(ctx, l.env.Gate.Closing, pause-rand.N(pause/4)) == timing.Ended {
			return &opError{act: "lead", key: stored.Lock, outcome: ctx.Err()}
		}
		pause = min(2*pause, leadAgainMost)
	}
}

// lead is one term. It tells whether to stand again, and why after a pause; or what Lead returns.
func (lk *Lock) lead(ctx context.Context, fn func(context.Context) error) (again bool, err error) {
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
			told := err
			if inner.Err() != nil && (errors.Is(err, inner.Err()) || errors.Is(err, context.Cause(inner))) {
				told = nil // it ended because its context did, which is no failure
			}
			// Its context may have ended, and the next leader waits for the release.
			released = lk.release(context.WithoutCancel(ctx), told)
		}()
		err = fn(inner)
	}()
	switch {
	case l.env.Gate.Closed():
		return false, fail
	case ctx.Err() != nil:
		fail.outcome = ctx.Err()
		return false, fail
	case lost != nil:
		return true, nil
	case err == nil:
		return false, released
	}
	return true, err
}
