package cronlock

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
)

// job is the Job of an entry of the cron.
type job struct {
	g    *Guard
	name string
	fn   func(context.Context) error
	config
	comparison ticks.Comparison
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
	case field[time.Time](own, "Prev").IsZero():
		err = invalid("job %q was not run by its cron: see RunNow", j.name)
	}
	return own, err
}

// Run runs one tick on this replica.
func (j *job) Run() {
	e, err := j.entry()
	if err != nil {
		j.tell(failed, Event{Err: err})
		return
	}
	s := ticks.True(field[ticks.Schedule](e, "Schedule"))
	// Round drops the reading of the monotonic clock that @every leaves: that clock stands still while a machine sleeps.
	at, next := field[time.Time](e, "Prev").Round(0).Add(j.ahead), field[time.Time](e, "Next").Add(j.ahead)
	if ticks.Stateless(s) { // after a pause of the process the entry's Next is far from Prev
		next = s.Next(at)
	}
	w := j.work
	w.Claim = append(slices.Clip(w.Claim), ticks.Gap(s)...)
	if j.failOpen {
		w.Unlocked = func(err error) { j.tell(unlocked, Event{Tick: at, Err: err}) }
	}
	period := next.Sub(at)
	j.g.runner.Run(&w, at, period, func(o tick.Outcome, err error) {
		var held *holdfast.HeldError
		switch {
		case err == nil:
			if !o.Ran {
				j.tell(skipped, Event{Tick: at, Holder: j.holder()})
			}
			j.reportLoss(o)
			if err := j.comparison.Differs(j.g.locker, w.Name, o.Key, ticks.Fingerprint(s, j.g.cron.Location()), period); err != nil {
				j.tell(differs, Event{Tick: at, Err: err})
			}
		case errors.As(err, &held):
			j.tell(skipped, Event{Tick: at, Holder: held.Label, Err: err})
		case !o.Ran:
			j.tell(late, Event{Tick: at, Err: err, aside: errors.Is(err, tick.ErrLate) && !o.Claimed})
		}
	})
}

// holder returns the label of the replica that runs a tick, if a Trace wants it, which costs a command.
func (j *job) holder() string {
	if !slices.ContainsFunc(j.traces, func(t *Trace) bool { return t.Skipped != nil }) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state, _ := j.g.locker.Inspect(ctx, j.work.Name)
	return state.Label
}

func (j *job) reportLoss(o tick.Outcome) {
	if o.Lost != nil {
		j.tell(lost, Event{Tick: o.At, Err: o.Lost})
	}
}

var errPanic = errors.New("cronlock: the job panicked, or ended its goroutine")

// do calls the job. It lets a panic pass, to cron's Recover if there is one.
func (j *job) do(ctx context.Context, at time.Time) error {
	e := Event{Tick: at, Err: errPanic}
	held := holdfast.Held(ctx)
	if len(held) > 0 {
		e.Token = held[0].Token()
	}
	began, hook := time.Now(), failed
	defer func() {
		e.Elapsed = time.Since(began)
		j.tell(hook, e)
	}()
	if e.Err = j.fn(context.WithValue(ctx, runKey{}, running{j.name, at})); e.Err == nil {
		hook = ran
	} else {
		e.aside = len(held) > 0 && held[0].Err() != nil
	}
	return e.Err
}
