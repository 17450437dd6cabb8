package cronlock

import (
	"context"
	"log/slog"
	"time"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine that does the work, so they must return quickly, and several may run at once. Ran or Failed reports each run,
// once; Lost does too if the run's lock was lost. A [holdfast.Trace] of the Locker reports what happens to the lock itself.
type Trace struct {
	// Ran: the job ran here and returned nil. Sets Token and Elapsed.
	Ran func(Event)
	// Skipped: another replica has claimed the tick, which is the usual case. If Err is set, this replica has claimed the
	// tick and does not run it, because the lock is held: Err matches [holdfast.ErrNotAcquired]. Holder is the label of the
	// lock's holder, if known.
	Skipped func(Event)
	// Late: the tick does not run on this replica, for the reason in Err: Redis was unavailable ([holdfast.ErrUnavailable]),
	// a clock is off ([holdfast.ErrTick]), the process was paused, or the Guard or the Locker was stopped
	// ([holdfast.ErrClosed]).
	Late func(Event)
	// Lost: the lock was lost while the job ran. Err matches [holdfast.ErrLost].
	Lost func(Event)
	// Failed: the job returned Err or panicked, or it cannot run: see [Guard.Job]. Sets Token and Elapsed.
	Failed func(Event)
	// Unlocked: the job runs here without the lock and the claim: see [WithFailOpen]. Err says why.
	Unlocked func(Event)
	// Differs: another replica has a different spec or location for this name. Err shows ticks of both. Replicas compare at
	// most once a minute, and not with several masters. For a [cron.Schedule] that is not cron's own they compare only the
	// type.
	Differs func(Event)
}

// Event is what a [Trace] hook receives. Name is always set, and Tick if known. Other fields may be zero unless the hook's
// comment names them.
type Event struct {
	Name    string
	Tick    time.Time
	Holder  string
	Token   int64
	Elapsed time.Duration
	Err     error
}

// hook selects a hook of a Trace.
type hook func(*Trace) func(Event)

func ran(t *Trace) func(Event)      { return t.Ran }
func skipped(t *Trace) func(Event)  { return t.Skipped }
func late(t *Trace) func(Event)     { return t.Late }
func lost(t *Trace) func(Event)     { return t.Lost }
func failed(t *Trace) func(Event)   { return t.Failed }
func unlocked(t *Trace) func(Event) { return t.Unlocked }
func differs(t *Trace) func(Event)  { return t.Differs }

// tell calls one hook of every Trace that has it. If none has it, tell logs.
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

// logTrace is the default logging, for hooks that no Trace sets.
var logTrace = Trace{
	Late:     logged(slog.LevelError, "cronlock: a tick does not run on this replica"),
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

// asks reports whether a hook wants the holder of a tick, which costs a command.
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

// Tick returns the name of the job to which ctx belongs, and the nominal time for which it runs. With [Guard.RunNow] that is
// the moment of the call. ok is false outside of a job. The fencing token is that of holdfast.Held(ctx)[0]; with [Allow] or
// [WithFailOpen] there may be no lock.
func Tick(ctx context.Context) (name string, tick time.Time, ok bool) {
	r, ok := ctx.Value(runKey{}).(running)
	return r.name, r.tick, ok
}
