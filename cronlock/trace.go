package cronlock

import (
	"context"
	"time"
)

// Trace is a set of hooks, in the manner of net/http/httptrace.ClientTrace. Any may be nil. They run in the goroutine of
// the job.
type Trace struct {
	// Ran: the job ran here, and returned nil. Token, Elapsed.
	Ran func(Event)
	// Skipped: another replica has the tick; or, with an Err, an earlier run goes on. Holder is the label of who has the
	// lock, where one is known.
	Skipped func(Event)
	// Late: the tick is left out on this replica, as Err says: Redis did not answer in time ([holdfast.ErrUnavailable]), the clock
	// is off ([holdfast.ErrTick]), the process was paused, the Guard was stopped ([ErrStopped]).
	Late func(Event)
	// Lost: the lock was lost while the job ran, Err matches [holdfast.ErrLost].
	Lost func(Event)
	// Failed: the job returned Err, or panicked; or it cannot be run, see [Guard.Job]. Token, Elapsed.
	Failed func(Event)
	// Unlocked: the job runs here without lock and claim, see [WithFailOpen].
	Unlocked func(Event)
	// Differs: another replica has other ticks for this name, as Err says. Looked at once a minute, on one Redis; of a
	// cron.Schedule that is not cron's own, only the type is.
	Differs func(Event)
}

// Event is what a [Trace] hook is told; fields that a hook's comment does not name may be zero.
type Event struct {
	Name    string
	Tick    time.Time
	Holder  string
	Token   int64
	Elapsed time.Duration
	Err     error
}

// kind is one of the hooks.
type kind struct {
	text  string
	hook  func(*Trace) func(Event)
	error bool // it is logged as one
}

var (
	ran      = kind{"ran", func(t *Trace) func(Event) { return t.Ran }, false}
	skipped  = kind{"skipped", func(t *Trace) func(Event) { return t.Skipped }, false}
	late     = kind{"tick left out", func(t *Trace) func(Event) { return t.Late }, true}
	lost     = kind{"lock lost", func(t *Trace) func(Event) { return t.Lost }, true}
	failed   = kind{"failed", func(t *Trace) func(Event) { return t.Failed }, true}
	unlocked = kind{"running without the lock", func(t *Trace) func(Event) { return t.Unlocked }, true}
	differs  = kind{"ticks differ between replicas", func(t *Trace) func(Event) { return t.Differs }, true}
)

// tell everybody who wants to know.
func (j *job) tell(k kind, e Event) {
	e.Name = j.name
	for _, t := range j.traces {
		if f := k.hook(t); f != nil {
			f(e)
		}
	}
	if !k.error {
		j.logger.Info(k.text, "job", e.Name, "tick", e.Tick, "holder", e.Holder, "token", e.Token, "elapsed", e.Elapsed)
		return
	}
	j.logger.Error(e.Err, k.text, "job", e.Name, "tick", e.Tick)
}

// asks tells whether a hook wants to know who has a tick, which costs a command.
func (j *job) asks() bool {
	for _, t := range j.traces {
		if t.Skipped != nil {
			return true
		}
	}
	return false
}

type runKey struct{}

type running struct {
	name string
	tick time.Time
}

// Tick is the nominal time for which a job runs, from its context; the moment of the call for [Guard.RunNow]. It is zero
// outside of a job.
func Tick(ctx context.Context) time.Time {
	if r, ok := ctx.Value(runKey{}).(*running); ok {
		return r.tick
	}
	return time.Time{}
}

// Name is the name of the job that a context is of, "" outside of one. The fencing token is that of holdfast.Held(ctx)[0].
func Name(ctx context.Context) string {
	if r, ok := ctx.Value(runKey{}).(*running); ok {
		return r.name
	}
	return ""
}
