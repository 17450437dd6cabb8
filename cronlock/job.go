package cronlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/robfig/cron/v3"
)

// job is what the cron has as an entry's Job.
type job struct {
	g    *Guard
	name string
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
		case other.g == j.g && other.name == j.name:
			return e, invalid("two entries have jobs named %q: give them names of their own", j.name)
		}
	}
	switch {
	case len(own) == 0:
		return cron.Entry{}, invalid("job %q is in no entry of the cron that New was given: add what Job returned by AddJob itself, and put wrappers into cron.WithChain", j.name)
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
	j.tick(e.Prev.Add(j.ahead), e.Schedule)
}

// tick claims the tick, and runs the job if it is granted.
func (j *job) tick(tick time.Time, schedule cron.Schedule) {
	period := schedule.Next(tick).Sub(tick)
	if period <= 0 {
		period = 24 * time.Hour // there is no next
	}
	bound := j.lateness
	if bound == 0 {
		bound = min(period/2, defaultLateness)
	}
	left := bound - (time.Since(tick) + j.ahead)
	if left <= 0 {
		j.tell(late, Event{Tick: tick, Err: &lateError{bound - left, bound}})
		return
	}
	ctx, cancel := context.WithTimeout(j.g.ctx, left)
	defer cancel()
	won, err := j.claim(ctx, tick, schedule, left)
	if err == nil && !won {
		j.tell(skipped, Event{Tick: tick, Holder: j.holder(ctx)})
		j.compare("", tick, period, schedule)
		return
	}
	var o outcome
	if err == nil {
		o, err = j.run(j.g.ctx, tick, period, min(j.overlap.wait, left), left)
	}
	var held *core.HeldError
	switch {
	case o.ran:
		j.compare(o.key, tick, period, schedule)
	case errors.As(err, &held):
		j.tell(skipped, Event{Tick: tick, Holder: held.Label, Err: err})
	case errors.Is(err, core.ErrUnavailable) && j.failOpen && j.g.ctx.Err() == nil:
		j.tell(unlocked, Event{Tick: tick, Err: err})
		_ = j.work(j.g.ctx, tick)
	default:
		j.tell(late, Event{Tick: tick, Err: err})
	}
}

type lateError struct{ by, bound time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("cronlock: %v late, %v are allowed", e.by.Round(time.Millisecond), e.bound)
}

// longestGap is core's.
const longestGap = 366 * 24 * time.Hour

// claim asks until there is an answer, for as long as the job may be late. Where every replica counts its own periods, so
// that their ticks differ, they have to be a period apart.
func (j *job) claim(ctx context.Context, tick time.Time, schedule cron.Schedule, left time.Duration) (won bool, err error) {
	opts := append([]core.CallOption{core.WithWait(left)}, j.window...)
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		opts = append(opts, core.WithMinGap(min(every.Delay, longestGap)))
	}
	return j.g.locker.Claim(ctx, j.name, tick, opts...)
}

// holder is who has the lock of a tick that another replica runs, for those who want to know.
func (j *job) holder(ctx context.Context) string {
	if !j.asks() {
		return ""
	}
	state, err := j.g.locker.Inspect(ctx, j.name)
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

// slack is what a lease may end later than Redis says.
const slack = 50 * time.Millisecond

// run has the job work under the lock, unless runs may overlap. It waits for the lock for wait; and, up to patience, for
// as long as the holder's lease lasts: the holder may be dead.
func (j *job) run(ctx context.Context, tick time.Time, period, wait, patience time.Duration) (o outcome, err error) {
	if j.overlap.allow {
		return outcome{ran: true, result: j.work(ctx, tick)}, nil
	}
	o, err = j.underLock(ctx, tick, j.lockOptions(period, wait))
	var held *core.HeldError
	if !o.ran && errors.As(err, &held) && wait < patience && wait <= held.TimeLeft {
		o, err = j.underLock(ctx, tick, j.lockOptions(period, min(held.TimeLeft+slack, patience)))
	}
	return o, err
}

func (j *job) underLock(ctx context.Context, tick time.Time, opts []core.CallOption) (o outcome, err error) {
	var abandoned error
	err = j.g.locker.Do(ctx, j.name, func(ctx context.Context) error {
		lock := core.Held(ctx)[0]
		o.ran, o.key = true, lock.Key()
		o.result = j.work(ctx, tick)
		if err := lock.Err(); errors.Is(err, core.ErrClosed) {
			abandoned = fmt.Errorf("%w: %w", core.ErrLost, err) // a Shutdown of the Locker gave it up
		}
		return nil
	}, opts...)
	if !o.ran {
		return o, err
	}
	if abandoned != nil {
		err = abandoned
	}
	if errors.Is(err, core.ErrLost) {
		j.tell(lost, Event{Tick: tick, Err: err})
		o.result = errors.Join(o.result, err)
	}
	return o, nil // a release without an answer: the lock ends with its lease
}

// work calls the job. A panic goes on, to cron's Recover if there is one.
func (j *job) work(ctx context.Context, tick time.Time) error {
	ctx = context.WithValue(ctx, runKey{}, &running{j.name, tick})
	began := time.Now()
	err := j.fn(ctx)
	e := Event{Tick: tick, Elapsed: time.Since(began), Err: err}
	if held := core.Held(ctx); len(held) > 0 {
		e.Token = held[0].Token()
	}
	if err != nil {
		j.tell(failed, e)
	} else {
		j.tell(ran, e)
	}
	return err
}
