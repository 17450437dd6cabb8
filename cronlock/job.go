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

// job is the Job of an entry of the cron.
type job struct {
	g    *Guard
	name string
	key  string // of its lock, and the name of its claims
	fn   func(context.Context) error
	config
	compared time.Time // when its ticks were last compared with other replicas'; guarded by g.mu
}

// added returns how many entries of the cron have this very job. It compares only *job pointers: comparing cron's FuncJobs
// panics.
func (j *job) added() (n int) {
	for _, e := range j.g.cron.Entries() {
		if other, ok := e.Job.(*job); ok && other == j {
			n++
		}
	}
	return n
}

// entry returns the job's entry. cron sets Prev to the nominal tick right after it has started Run, in the loop that
// answers Entries. So what Run reads when it begins is its own tick, wherever the job is in the cron's chain, unless a
// wrapper has delayed it past the next tick.
func (j *job) entry() (cron.Entry, error) {
	var own []cron.Entry
	for _, e := range j.g.cron.Entries() {
		other, ok := e.Job.(*job)
		switch {
		case !ok:
		case other == j:
			own = append(own, e)
		case other.g.locker == j.g.locker && other.name == j.name:
			return e, invalid("two entries have jobs named %q: give each its own name", j.name)
		}
	}
	switch {
	case len(own) == 0:
		return cron.Entry{}, invalid("job %q is in no entry of the cron that New was given, or was removed: add what Job returned, unwrapped, by AddJob, and pass wrappers to cron.WithChain", j.name)
	case len(own) > 1:
		return own[0], invalid("job %q is in %d entries: call Job once for each, with its own name", j.name, len(own))
	case own[0].Prev.IsZero():
		return own[0], invalid("job %q was not run by its cron: see RunNow", j.name)
	}
	return own[0], nil
}

// Run runs one tick on this replica.
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
	// Round drops the reading of the monotonic clock that @every leaves: that clock stands still while a machine sleeps.
	tick, next := e.Prev.Round(0).Add(j.ahead), e.Next.Add(j.ahead)
	switch e.Schedule.(type) {
	case *cron.SpecSchedule, cron.ConstantDelaySchedule:
		// After a pause of the process the entry's Next is far from Prev. The Next of other schedules is for their cron alone.
		next = e.Schedule.Next(tick)
	}
	j.tick(tick, next.Sub(tick), e.Schedule)
}

// tick claims the tick, and runs the job if the claim is granted.
func (j *job) tick(tick time.Time, period time.Duration, schedule cron.Schedule) {
	if period <= 0 {
		period = 24 * time.Hour // there is no next tick
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
		pauseFor(j.g.ctx, early) // more than longestEarly, which only a wider window of WithClaim grants
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
	case j.g.ctx.Err() != nil:
		j.tell(late, Event{Tick: tick, Err: errStopped})
	case errors.As(err, &held):
		j.tell(skipped, Event{Tick: tick, Holder: held.Label, Err: err})
	case errors.Is(err, holdfast.ErrUnavailable) && j.failOpen:
		j.tell(unlocked, Event{Tick: tick, Err: err})
		_ = j.work(j.g.ctx, tick)
	default:
		j.tell(late, Event{Tick: tick, Err: err})
	}
}

// longestEarly is how far ahead of the clock of Redis Claim grants a tick, unless WithClaim sets another window. A tick
// that is further ahead is claimed before the wait, which refuses most such ticks at once. Others are claimed after it.
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
	return fmt.Sprintf("cronlock: %v late, at most %v allowed", e.by.Round(time.Millisecond), e.bound)
}

// longestGap is the longest gap that holdfast.WithMinGap takes.
const longestGap = 366 * 24 * time.Hour

// claimTick asks until Redis answers, for as long as the job may be late. With @every each replica counts its own periods,
// so that their ticks differ: then granted ticks must be a period apart.
func (j *job) claimTick(ctx context.Context, tick time.Time, schedule cron.Schedule, left time.Duration) (won bool, err error) {
	opts := append(slices.Clip(j.claim), holdfast.WithWait(left))
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		opts = append(opts, holdfast.WithMinGap(min(every.Delay, longestGap)))
	}
	return j.g.locker.Claim(ctx, j.key, tick, opts...)
}

// holder returns the label of the replica that runs a tick, if a Trace wants it.
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

// outcome is the result of an attempt to run.
type outcome struct {
	ran    bool
	key    string // of the lock as stored in Redis, if there was a lock
	result error  // of the job
}

const (
	slack      = 50 * time.Millisecond  // how much later than Redis says a lease may end
	retryPause = 200 * time.Millisecond // between requests while Redis fails
)

// lease returns half of the period, so that the next tick finds the lock of a dead holder free. It returns longestLease if
// that is too short for options of the lock or of the Locker, such as a timeout for nodes.
func (j *job) lease(period time.Duration) time.Duration {
	lease := max(shortestLease, min(longestLease, period/2))
	if check(j.g.locker, j.key, &j.config, lease) != nil {
		return longestLease
	}
	return lease
}

// run runs the job under the lock, or without one if runs may overlap. If another holder has the lock, run waits as the
// Policy says, and at least for what is left of the holder's lease, since the holder may be dead; with Wait(0) it does not.
// The try in front of the wait says how much that is. While Redis is unavailable, run asks again, since no other replica
// runs a tick that is claimed here. The job does not begin after until.
func (j *job) run(ctx context.Context, tick time.Time, lease time.Duration, until time.Time, punctual func() error) (o outcome, err error) {
	wait := time.Duration(0)
	for waited := false; ; {
		left := max(time.Until(until), 0)
		o, err = j.attempt(ctx, tick, j.lockOptions(lease, min(wait, left)), punctual)
		left = time.Until(until)
		var held *holdfast.HeldError
		switch {
		case o.ran || left <= 0 || ctx.Err() != nil:
			return o, err
		case errors.As(err, &held) && !waited && !j.busy.exact:
			waited, wait = true, max(j.busy.wait, held.TimeLeft+slack)
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
			abandoned = fmt.Errorf("%w: %w", holdfast.ErrLost, err) // by a Shutdown of the Locker
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
	return o, nil // a failed release does not count: the lock ends with its lease
}

var errPanic = errors.New("cronlock: the job panicked, or ended its goroutine")

// work calls the job. It lets a panic pass, to cron's Recover if there is one.
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
