package tick

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// Work is what a [Runner] does at each tick of a name.
type Work struct {
	// Name is that of the ticks, and the key of the lock.
	Name string
	// Do does the work, for the tick at, in a context that carries the lock and ends with it.
	Do func(ctx context.Context, at time.Time) error
	// Lateness is how long after its tick the work can begin. Default: half of the period, at most 1 min.
	Lateness time.Duration
	// Wait is how long work waits for a lock that is busy. If it is negative, work waits for what is left of the
	// holder's lease: the holder may have died.
	Wait time.Duration
	// Overlap lets work overlap with that of other ticks: then there is no lock.
	Overlap bool
	// Lock has options for the lock. Default: a lease of half of the period, 500 ms to 15 s, so that the next tick
	// finds the lock of a dead holder free. A WithWait has no effect.
	Lock []holdfast.CallOption
	// Claim has options for the claims.
	Claim []Option
	// Unlocked, if it is set, is called with the reason when Redis is unavailable. Then Do runs without claim and lock,
	// and may run on each replica.
	Unlocked func(error)
}

const (
	defaultLateness = time.Minute
	longestLease    = 15 * time.Second
	shortestLease   = 500 * time.Millisecond
	slack           = 50 * time.Millisecond // how much later than Redis says a lease may end
)

// Check returns a [holdfast.ErrInvalid] where a run would, and asks nothing of Redis.
func (w *Work) Check(locker *holdfast.Locker) error {
	if err := Check(locker, w.Name, w.Claim...); err != nil {
		return err
	}
	return locker.Check(w.Name, w.options(longestLease, 0)...)
}

// options returns those of an acquisition. Those of Lock override lease, but not wait.
func (w *Work) options(lease, wait time.Duration) []holdfast.CallOption {
	opts := append([]holdfast.CallOption{holdfast.WithTTL(lease)}, w.Lock...)
	return append(opts, holdfast.WithWait(wait))
}

// Outcome says what became of a tick.
type Outcome struct {
	At      time.Time // the tick
	Claimed bool      // this replica has the tick: it runs here or nowhere
	Ran     bool      // Do was called
	Key     string    // of the lock as stored in Redis, if there was a lock
	Err     error     // of Do, and Lost
	Lost    error     // matches holdfast.ErrLost if the lock was lost while Do ran
}

// A Runner does the work of a scheduler on one replica: that of each tick on one of the replicas, under a lock. Make one
// with [NewRunner]. It is safe for concurrent use.
type Runner struct {
	clock  *Clock
	ctx    context.Context // of all work; Stop ends it
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	stopped bool
	runs    sync.WaitGroup // no run is added once stopped is set
}

// NewRunner returns a Runner that claims by clock.
func NewRunner(clock *Clock) *Runner {
	r := &Runner{clock: clock}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// Run does w for the tick at, if this replica gets the tick, and then calls report. period is the time to the next tick, or 0
// if there is none. If Do was not called, report gets the reason, or nil if another replica has the tick: a
// [holdfast.HeldError] if the lock is busy, [ErrLate], [ErrWindow], [holdfast.ErrClosed] after Stop, or another error of
// [Claim] and [holdfast.Locker.Acquire]. If Unlocked is set, Do was called in spite of a [holdfast.ErrUnavailable].
func (r *Runner) Run(w *Work, at time.Time, period time.Duration, report func(Outcome, error)) {
	if !r.enter() {
		report(Outcome{At: at}, errStopped)
		return
	}
	defer r.runs.Done()
	if period <= 0 {
		period = 24 * time.Hour
	}
	bound := w.Lateness
	if bound == 0 {
		bound = min(period/2, defaultLateness)
	}
	until, won, err := r.clock.Claim(r.ctx, w.Name, at, bound, w.Claim...)
	o := Outcome{At: at}
	if err == nil && won {
		lease := max(shortestLease, min(longestLease, period/2))
		if r.clock.Locker.Check(w.Name, w.options(lease, 0)...) != nil {
			lease = longestLease // for options such as a timeout for nodes
		}
		o, err = r.run(w, at, lease, until, bound)
		o.Claimed = true
	}
	switch {
	case o.Ran, err == nil, errors.Is(err, ErrLate) && !won:
	case r.ctx.Err() != nil:
		err = errStopped
	case errors.Is(err, holdfast.ErrUnavailable) && w.Unlocked != nil:
		w.Unlocked(err)
		o.Ran, o.Err = true, w.Do(r.ctx, at)
	}
	report(o, err)
}

// run tries until the lock is there or the work would begin too late. The first try says how much is left of the holder's
// lease. While Redis is unavailable, run tries again, since no other replica runs a tick that is claimed here.
func (r *Runner) run(w *Work, at time.Time, lease time.Duration, until time.Time, bound time.Duration) (o Outcome, err error) {
	punctual := func() error {
		if over := time.Since(until); over >= 0 {
			return fmt.Errorf("%w: %v late, at most %v allowed", ErrLate, (bound + over).Round(time.Millisecond), bound)
		}
		return nil
	}
	wait := w.Wait
	for {
		o, err = r.attempt(r.ctx, w, at, w.options(lease, max(0, min(wait, time.Until(until)))), punctual)
		left := time.Until(until)
		var held *holdfast.HeldError
		switch {
		case o.Ran || left <= 0 || r.ctx.Err() != nil:
			return o, err
		case errors.As(err, &held) && wait < 0:
			wait = held.TimeLeft + slack
		case errors.Is(err, holdfast.ErrUnavailable):
			sleep(r.ctx, min(retryPause, left))
		default:
			return o, err
		}
	}
}

func (r *Runner) attempt(ctx context.Context, w *Work, at time.Time, opts []holdfast.CallOption, punctual func() error) (o Outcome, err error) {
	o.At = at
	do := func(ctx context.Context) error {
		if err := punctual(); err != nil {
			return err
		}
		o.Ran = true
		if !w.Overlap {
			o.Key = holdfast.Held(ctx)[0].Key()
		}
		o.Err = w.Do(ctx, at)
		return nil
	}
	if w.Overlap {
		err = do(ctx)
		return o, err
	}
	err = r.clock.Locker.Do(ctx, w.Name, do, opts...)
	if o.Ran && errors.Is(err, holdfast.ErrLost) {
		o.Lost, o.Err = err, errors.Join(o.Err, err)
	}
	if o.Ran {
		err = nil // a failed release does not count: the lock ends with its lease
	}
	return o, err
}

// Now does w at once, and returns the error of Do, or why it was not called. It uses up no tick: the work's tick is the
// moment of the call. Lateness does not apply, and a negative Wait does not wait.
func (r *Runner) Now(ctx context.Context, w *Work) (Outcome, error) {
	if ctx == nil {
		return Outcome{}, invalid("nil context")
	}
	if !r.enter() {
		return Outcome{}, errStopped
	}
	defer r.runs.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })()
	o, err := r.attempt(ctx, w, time.Now(), w.options(longestLease, max(w.Wait, 0)), func() error { return nil })
	if err == nil {
		err = o.Err
	}
	return o, err
}

// Stop lets no further work begin once quiet is closed, and waits for the work that runs. If ctx ends first, Stop ends the
// contexts of the work with a cause that matches [holdfast.ErrClosed], waits for it, and returns ctx's error.
func (r *Runner) Stop(ctx context.Context, quiet <-chan struct{}) error {
	if ctx == nil {
		return invalid("nil context")
	}
	defer r.cancel(errStopped)
	done := make(chan struct{})
	go func() {
		<-quiet
		r.leave()
		r.runs.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		r.leave()
		r.cancel(errStopped)
		r.runs.Wait()
		return ctx.Err()
	}
}

// enter counts a run that begins. It reports false if the Runner is stopped: then the run must not begin.
func (r *Runner) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.runs.Add(1)
	}
	return !r.stopped
}

// leave lets no further run begin.
func (r *Runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// errStopped matches holdfast.ErrClosed, but does not use its text, which is about a Locker.
var errStopped error = stoppedError{}

type stoppedError struct{}

func (stoppedError) Error() string        { return "tick: the scheduler was stopped" }
func (stoppedError) Is(target error) bool { return target == holdfast.ErrClosed }
