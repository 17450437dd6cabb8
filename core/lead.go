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

// Lead runs fn on one replica at a time, for as long as ctx lasts: a poller, a consumer, the relay of an outbox. It waits to
// hold the lock of name, runs fn, and when fn has returned stands again, until ctx ends. fn must return when its context
// ends, which it does with the leadership:
//
//   - fn returns nil: Lead releases and returns nil. This replica is through with it.
//   - fn returns an error: Lead releases, so that the next in line leads within a round trip, and stands again after 1 s, and twice as
//     long after each further failure, to 30 s, less up to a quarter at random. A [Trace] is told of the error by Released.
//   - The leadership is lost: fn's context ends, with an [ErrLost] as its cause. Once fn has returned, whatever it returns, Lead
//     stands again at once.
//   - Redis is away: Lead goes on trying, with the same pauses.
//   - ctx ends, or [Locker.Shutdown] begins: so does fn's context. Once fn has returned, Lead releases and returns.
//   - fn panics: Lead releases and goes on panicking.
//
// Lead never releases, nor returns, while fn runs. So a leader whose fn does not look at its context goes on beside the next: write
// under package sqlfence, or compare tokens, and what it writes then is refused. The term is the fencing token, that of
// Held(ctx)[0]. Who leads tells [Locker.Inspect], by [WithLabel]. After a crash the next one leads when the lease is over,
// 15 s by default, see [WithTTL].
//
// Errors: ctx.Err(), within what Acquire or Release would return; [ErrClosed]; [ErrSelfDeadlock] where ctx holds the lock of name
// already; [ErrInvalid], also for [WithWait], [WithoutRenewal], [WithReentryID], [WithLimit] and [WithShared], which make no sense
// here. After nil from fn those of [Lock.Release].
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
	cfg.reentrant = false
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
	lost, released := error(nil), error(nil)
	func() {
		defer func() {
			lost = lk.Err()
			// Its context may have ended, and the next leader waits for the release.
			released = lk.release(context.WithoutCancel(ctx), err)
		}()
		err = fn(lk.Context(outer))
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
