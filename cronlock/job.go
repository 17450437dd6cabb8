package cronlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/robfig/cron/v3"
)

// job is what the cron has as an entry's Job.
type job struct {
	g    *Guard
	name string
	key  string // of its lock, and of what its ticks are claimed by
	fn   func(context.Context) error
	config
	compared time.Time // when the ticks were compared with those of others; under the Guard's mu
}

// added is how many entries of the cron have this very job. Pointers are compared, and of their own type: cron's
// FuncJobs cannot be.
func (j *job) added() (n int) {
	for _, e := range j.g.cron.Entries() {
		if other, ok := e.Job.(*job); ok && other == j {
			n++
		}
	}
	return n
}

// entry is that of the job. cron sets Prev to the nominal tick right after it has started Run, in the loop that answers
// Entries: so what is read at the beginning of Run is its own tick, wherever in the cron's chain that is, unless a
// wrapper has delayed it past the next.
func (j *job) entry() (cron.Entry, error) {
	var own []cron.Entry
	for _, e := range j.g.cron.Entries() {
		other, ok := e.Job.(*job)
		switch {
		case !ok:
		case other == j:
			own = append(own, e)
		case other.g.locker == j.g.locker && other.name == j.name:
			return e, invalid("two entries have jobs named %q: give them names of their own", j.name)
		}
	}
	switch {
	case len(own) == 0:
		return cron.Entry{}, invalid("job %q is in no entry of the cron that New was given, or was removed in the meantime: add what Job returned by AddJob itself, and put wrappers into cron.WithChain", j.name)
	case len(own) > 1:
		return own[0], invalid("job %q is in %d entries: call Job for each, with names of their own", j.name, len(own))
	case own[0].Prev.IsZero():
		return own[0], invalid("job %q was not run by its cron: see RunNow", j.name)
	}
	return own[0], nil
}

// Run is one tick on this replica.
func (j *job) Run() {
	if !j.g.enter() {
		j.tell(late, Event{Err: errStopped})
		return
	}
	defer j.g.runs.Done()
	e, err := j.entry()
	if err != nil {
		j.tell(failed, Event{Err: err})
		return
	}
	if s, ok := e.Schedule.(skewed); ok {
		e.Schedule = s.Schedule
	}
	// The wall clock alone: @every leaves a reading of the monotonic one, which stands still while a machine sleeps.
	j.tick(e.Prev.Round(0).Add(j.ahead), e.Next.Sub(e.Prev), e.Schedule)
}

// tick claims the tick, and runs the job if it is granted.
func (j *job) tick(tick time.Time, period time.Duration, schedule cron.Schedule) {
	if period <= 0 {
		period = 24 * time.Hour // there is no next
	}
	bound := j.lateness
	if bound == 0 {
		bound = min(period/2, defaultLateness)
	}
	until := time.Now().Add(bound - time.Since(tick) - j.ahead)
	punctual := func() error {
		if over := time.Since(until); over >= 0 {
			return &lateError{bound + over, bound}
		}
		return nil
	}
	if err := punctual(); err != nil {
		j.tell(late, Event{Tick: tick, Err: err})
		return
	}
	ctx, cancel := context.WithDeadline(j.g.ctx, until)
	defer cancel()
	early := j.early(ctx, tick)
	if until = until.Add(early); early <= longestEarly {
		pauseFor(j.g.ctx, early)
		early = 0
		ctx, cancel = context.WithDeadline(j.g.ctx, until)
		defer cancel()
	}
	won, err := j.claimTick(ctx, tick, schedule, max(time.Until(until)-early, 0))
	if won {
		pauseFor(j.g.ctx, early) // it is one that the window of WithClaim grants
	}
	if err == nil && !won {
		j.tell(skipped, Event{Tick: tick, Holder: j.holder(ctx)})
		j.compare("", tick, period, schedule)
		return
	}
	var o outcome
	if err == nil {
		o, err = j.run(j.g.ctx, tick, j.lease(period), until, punctual)
	}
	var held *holdfast.HeldError
	switch {
	case o.ran:
		j.compare(o.key, tick, period, schedule)
	case errors.As(err, &held):
		j.tell(skipped, Event{Tick: tick, Holder: held.Label, Err: err})
	case errors.Is(err, holdfast.ErrUnavailable) && j.failOpen && j.g.ctx.Err() == nil:
		j.tell(unlocked, Event{Tick: tick, Err: err})
		_ = j.work(j.g.ctx, tick)
	default:
		j.tell(late, Event{Tick: tick, Err: err})
	}
}

// longestEarly is how far ahead of Redis' clock Claim grants a tick, unless WithClaim says otherwise. A tick that is not due for
// longer is claimed first, which refuses most of them at once.
const longestEarly = 10 * time.Second

// pauseFor waits for d, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

type lateError struct{ by, bound time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("cronlock: %v late, %v are allowed", e.by.Round(time.Millisecond), e.bound)
}

// longestGap is that of holdfast.WithMinGap.
const longestGap = 366 * 24 * time.Hour

// claimTick asks until there is an answer, for as long as the job may be late. Where every replica counts its own periods, so
// that their ticks differ, they have to be a period apart.
func (j *job) claimTick(ctx context.Context, tick time.Time, schedule cron.Schedule, left time.Duration) (won bool, err error) {
	opts := append(slices.Clip(j.claim), holdfast.WithWait(left))
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		opts = append(opts, holdfast.WithMinGap(min(every.Delay, longestGap)))
	}
	return j.g.locker.Claim(ctx, j.key, tick, opts...)
}

// holder is the label of the replica that runs a tick, for a Trace that asks for it.
func (j *job) holder(ctx context.Context) string {
	if !j.asks() {
		return ""
	}
	state, err := j.g.locker.Inspect(ctx, j.key)
	if err != nil {
		return ""
	}
	return state.Label
}

// outcome is what came of an attempt to run.
type outcome struct {
	ran    bool
	key    string // of the lock as stored, if there was one
	result error  // of the job
}

const (
	slack      = 50 * time.Millisecond  // what a lease may end later than Redis says
	retryPause = 200 * time.Millisecond // between requests for a lock where Redis fails
)

// lease is half of the period, so that the next tick finds the lock of a holder that died free; or the longest where
// options of the lock or of the Locker, a timeout of nodes say, leave no room in that.
func (j *job) lease(period time.Duration) time.Duration {
	lease := max(shortestLease, min(longestLease, period/2))
	if check(j.g.locker, j.key, &j.config, lease) != nil {
		return longestLease
	}
	return lease
}

// run has the job work under the lock, unless runs may overlap. It waits for the lock for wait. Until then it also waits for what
// is left of the holder's lease, since the holder may be dead, unless it is not to wait at all; and while Redis is away, since
// no other replica runs a tick that is claimed. The job does not begin later than until.
func (j *job) run(ctx context.Context, tick time.Time, lease time.Duration, until time.Time, punctual func() error) (o outcome, err error) {
	wait := j.busy.wait
	for waited := false; ; {
		left := max(time.Until(until), 0)
		o, err = j.attempt(ctx, tick, j.lockOptions(lease, min(wait, left)), punctual)
		left = time.Until(until)
		var held *holdfast.HeldError
		switch {
		case o.ran || left <= 0 || ctx.Err() != nil:
			return o, err
		case errors.As(err, &held) && !waited && !j.busy.exact && wait <= held.TimeLeft:
			waited, wait = true, held.TimeLeft+slack
		case errors.Is(err, holdfast.ErrUnavailable):
			select {
			case <-time.After(min(retryPause, left)):
			case <-ctx.Done():
			}
		default:
			return o, err
		}
	}
}

func (j *job) attempt(ctx context.Context, tick time.Time, opts []holdfast.CallOption, punctual func() error) (o outcome, err error) {
	if j.busy.allow {
		if err := punctual(); err != nil {
			return o, err
		}
		return outcome{ran: true, result: j.work(ctx, tick)}, nil
	}
	var abandoned error
	err = j.g.locker.Do(ctx, j.key, func(ctx context.Context) error {
		if err := punctual(); err != nil {
			return err
		}
		lock := holdfast.Held(ctx)[0]
		o.ran, o.key = true, lock.Key()
		o.result = j.work(ctx, tick)
		if err := lock.Err(); errors.Is(err, holdfast.ErrClosed) {
			abandoned = fmt.Errorf("%w: %w", holdfast.ErrLost, err) // a Shutdown of the Locker gave it up
		}
		return nil
	}, opts...)
	if !o.ran {
		return o, err
	}
	if abandoned != nil {
		err = abandoned
	}
	if errors.Is(err, holdfast.ErrLost) {
		j.tell(lost, Event{Tick: tick, Err: err})
		o.result = errors.Join(o.result, err)
	}
	return o, nil // a release without an answer: the lock ends with its lease
}

var errPanic = errors.New("cronlock: the job panicked, or ended its goroutine")

// work calls the job. A panic goes on, to cron's Recover if there is one.
func (j *job) work(ctx context.Context, tick time.Time) error {
	e := Event{Tick: tick, Err: errPanic}
	if held := holdfast.Held(ctx); len(held) > 0 {
		e.Token = held[0].Token()
	}
	began, returned := time.Now(), false
	defer func() {
		if !returned {
			e.Elapsed = time.Since(began)
			j.tell(failed, e)
		}
	}()
	err := j.fn(context.WithValue(ctx, runKey{}, running{j.name, tick}))
	returned, e.Elapsed, e.Err = true, time.Since(began), err
	if err != nil {
		j.tell(failed, e)
	} else {
		j.tell(ran, e)
	}
	return err
}
