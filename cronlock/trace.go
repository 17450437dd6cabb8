package cronlock

import (
	"context"
	"log/slog"
	"time"
)

// Trace is a set of hooks, in the manner of net/http/httptrace.ClientTrace. Any may be nil. They run in the goroutine of
// the job. A run is told by Ran or by Failed, once, and by Lost too if its lock was lost. What happens to the lock itself is
// told to a [holdfast.Trace] of the Locker.
type Trace struct {
	// Ran: the job ran here, and returned nil. Token, Elapsed.
	Ran func(Event)
	// Skipped: another replica has claimed the tick, which is the rule. With an Err this one has claimed it, and leaves it
	// out as an earlier run goes on. Holder is the label of who has the lock now, where one is known.
	Skipped func(Event)
	// Late: the tick is left out on this replica, as Err says: Redis did not answer in time ([holdfast.ErrUnavailable]), the clock
	// is off ([holdfast.ErrTick]), the process was paused, the Guard was stopped ([holdfast.ErrClosed]).
	Late func(Event)
	// Lost: the lock was lost while the job ran, Err matches [holdfast.ErrLost].
	Lost func(Event)
	// Failed: the job returned Err, or panicked; or it cannot be run, see [Guard.Job]. Token, Elapsed.
	Failed func(Event)
	// Unlocked: the job runs here without lock and claim, see [WithFailOpen].
	Unlocked func(Event)
	// Differs: another replica has another spec or location for this name, as Err says. Compared once a minute, on one Redis; of a
	// cron.Schedule that is not cron's own, only the type.
	Differs func(Event)
}

// Event is what a [Trace] hook is told. Name is always there, and Tick where there is one; other fields that a hook's comment does
// not name may be zero.
type Event struct {
	Name    string
	Tick    time.Time
	Holder  string
	Token   int64
	Elapsed time.Duration
	Err     error
}

// hook is one of a Trace.
type hook func(*Trace) func(Event)

func ran(t *Trace) func(Event)      { return t.Ran }
func skipped(t *Trace) func(Event)  { return t.Skipped }
func late(t *Trace) func(Event)     { return t.Late }
func lost(t *Trace) func(Event)     { return t.Lost }
func failed(t *Trace) func(Event)   { return t.Failed }
func unlocked(t *Trace) func(Event) { return t.Unlocked }
func differs(t *Trace) func(Event)  { return t.Differs }

// tell calls one hook of every trace, or of the log where none has it.
func (j *job) tell(h hook, e Event) {
	e.Name = j.name
	told := false
	for _, t := range j.traces {
		if f := h(t); f != nil {
			f(e)
			told = true
		}
	}
	if f := h(&logTrace); !told && f != nil {
		f(e)
	}
}

// logTrace is for hooks that no Trace sets.
var logTrace = Trace{
	Late:     logged(slog.LevelError, "cronlock: a tick is left out on this replica"),
	Lost:     logged(slog.LevelError, "cronlock: the lock was lost while its job ran"),
	Failed:   logged(slog.LevelError, "cronlock: a job failed"),
	Unlocked: logged(slog.LevelWarn, "cronlock: a job runs without its lock"),
	Differs:  logged(slog.LevelError, "cronlock: ticks differ between replicas"),
}

func logged(level slog.Level, msg string) func(Event) {
	return func(e Event) {
		slog.Log(context.Background(), level, msg, "job", e.Name, "tick", e.Tick, "err", e.Err)
	}
}

// asks tells whether a hook wants to know the holder of a tick, which costs a command.
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

// Tick returns the name of the job that ctx is of, and the nominal time for which it runs: the moment of the call for
// [Guard.RunNow]. ok is false outside of a job. The fencing token is that of
// holdfast.Held(ctx)[0]; with [Allow] or [WithFailOpen] there may be no lock.
func Tick(ctx context.Context) (name string, tick time.Time, ok bool) {
	r, ok := ctx.Value(runKey{}).(running)
	return r.name, r.tick, ok
}
