package cronlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
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

// entry returns the job's entry. cron sets Prev to the nominal tick right after it has started Run, in the loop that
// answers Entries. So what Run reads when it begins is its own tick, wherever the job is in the cron's chain, unless a
// wrapper has delayed it past the next tick.
func (j *job) entry() (own reflect.Value, err error) {
	n := 0
	for other, e := range j.g.cron.jobs() {
		if other == j {
			own, n = e, n+1
		} else if other.g.locker == j.g.locker && other.name == j.name {
			return own, invalid("two entries have jobs named %q: give each its own name", j.name)
		}
	}
	switch {
	case n == 0:
		err = invalid("job %q is in no entry of the cron that New was given, or was removed: add what Job returned, unwrapped, by AddJob, and pass wrappers to cron.WithChain", j.name)
	case n > 1:
		err = invalid("job %q is in %d entries: call Job once for each, with its own name", j.name, n)
	case moment(own, "Prev").IsZero():
		err = invalid("job %q was not run by its cron: see RunNow", j.name)
	}
	return own, err
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
	s := schedule(e)
	if skewed, ok := s.(ticks.Skewed); ok {
		s = skewed.Schedule
	}
	// Round drops the reading of the monotonic clock that @every leaves: that clock stands still while a machine sleeps.
	tick, next := moment(e, "Prev").Round(0).Add(j.ahead), moment(e, "Next").Add(j.ahead)
	if stateless(s) { // after a pause of the process the entry's Next is far from Prev
		next = s.Next(tick)
	}
	j.tick(tick, next.Sub(tick), s)
}

// tick claims the tick, and runs the job if the claim is granted.
func (j *job) tick(at time.Time, period time.Duration, schedule cron.Schedule) {
	if period <= 0 {
		period = 24 * time.Hour // there is no next tick
	}
	bound := j.lateness
	if bound == 0 {
		bound = min(period/2, defaultLateness)
	}
	until, won, err := j.g.clock.Claim(j.g.ctx, j.key, at, bound, j.claimOptions(schedule)...)
	if errors.Is(err, tick.ErrLate) {
		j.tell(late, Event{Tick: at, Err: err, aside: true})
		return
	}
	punctual := func() error {
		if over := time.Since(until); over >= 0 {
			return fmt.Errorf("%w: %v late, at most %v allowed", tick.ErrLate, (bound + over).Round(time.Millisecond), bound)
		}
		return nil
	}
	ctx, cancel := context.WithDeadline(j.g.ctx, until)
	defer cancel()
	if err == nil && !won {
		j.tell(skipped, Event{Tick: at, Holder: j.holder(ctx)})
		j.compare("", at, period, schedule)
		return
	}
	var o outcome
	if err == nil {
		o, err = j.run(j.g.ctx, at, j.lease(period), until, punctual)
	}
	var held *holdfast.HeldError
	switch {
	case o.ran:
		j.compare(o.key, at, period, schedule)
	case j.g.ctx.Err() != nil:
		j.tell(late, Event{Tick: at, Err: errStopped})
	case errors.As(err, &held):
		j.tell(skipped, Event{Tick: at, Holder: held.Label, Err: err})
	case errors.Is(err, holdfast.ErrUnavailable) && j.failOpen:
		j.tell(unlocked, Event{Tick: at, Err: err})
		_ = j.work(j.g.ctx, at)
	default:
		j.tell(late, Event{Tick: at, Err: err})
	}
}

// longestGap is the longest gap that tick.WithMinGap takes.
const longestGap = 366 * 24 * time.Hour

// claimOptions returns the options of a claim. Where cron counts the periods of an @every, those of each replica differ: then
// granted ticks must be a period apart.
func (j *job) claimOptions(schedule cron.Schedule) []tick.Option {
	if every := everyOf(schedule); every != 0 {
		return append(slices.Clip(j.claim), tick.WithMinGap(min(every, longestGap)))
	}
	return j.claim
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

// run runs the job under the lock, or without one if runs may overlap. If another holder has the lock, run waits as Wait
// says, or with Skip for what is left of the holder's lease, since the holder may be dead: the first try says how much that
// is. While Redis is unavailable, run asks again, since no other replica runs a tick that is claimed here. The job does not
// begin after until.
func (j *job) run(ctx context.Context, tick time.Time, lease time.Duration, until time.Time, punctual func() error) (o outcome, err error) {
	wait := j.busy.wait
	for waited := j.busy.waits; ; {
		left := max(time.Until(until), 0)
		o, err = j.attempt(ctx, tick, j.lockOptions(lease, min(wait, left)), punctual)
		left = time.Until(until)
		var held *holdfast.HeldError
		switch {
		case o.ran || left <= 0 || ctx.Err() != nil:
			return o, err
		case errors.As(err, &held) && !waited:
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
	err = j.g.locker.Do(ctx, j.key, func(ctx context.Context) error {
		if err := punctual(); err != nil {
			return err
		}
		lock := holdfast.Held(ctx)[0]
		o.ran, o.key = true, lock.Key()
		o.result = j.work(ctx, tick)
		return nil
	}, opts...)
	if !o.ran {
		return o, err
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
	held := holdfast.Held(ctx)
	if len(held) > 0 {
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
		e.aside = len(held) > 0 && held[0].Err() != nil
		j.tell(failed, e)
	} else {
		j.tell(ran, e)
	}
	return err
}
