package cronlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// Trace is a set of hooks, like a [holdfast.Trace]. Any of them may be nil. They run on the goroutine that does the
// work, so they must return quickly, and several may run at once.
type Trace struct {
	// Ran: the job ran here and returned nil. Sets Token and Elapsed.
	Ran func(Event)
	// Skipped: another replica has claimed the tick, the usual case; or, with a [holdfast.ErrNotAcquired], this one has
	// and the key is busy. Holder is the label of the lock's holder, if known.
	Skipped func(Event)
	// Late: the tick does not run on this replica: Redis was unavailable ([holdfast.ErrUnavailable]), a clock is off
	// ([tick.ErrWindow]), the process was paused ([tick.ErrLate]), or the Guard or the Locker was stopped
	// ([holdfast.ErrClosed]).
	Late func(Event)
	// Lost: the lock was lost while the job ran. Ran or Failed reports the run too.
	Lost func(Event)
	// Failed: the job returned Err or panicked, or it found no tick. Sets Token and Elapsed. The tick is not retried. A
	// panic continues, and ends the process unless cron.Recover is in the chain.
	Failed func(Event)
	// Unlocked: the job runs here without the lock and the claim, for the reason in Err: see [WithFailOpen].
	Unlocked func(Event)
	// Differs: another replica has a different spec or location for this name. Err shows ticks of both.
	Differs func(Event)
}

// Event is what a [Trace] hook receives. Name is always set, and Tick if known. Other fields may be zero unless the
// hook's comment names them.
type Event struct {
	Name    string
	Tick    time.Time
	Holder  string
	Token   int64
	Elapsed time.Duration
	Err     error

	aside bool // of Late: nobody was asked who has the tick; of Failed: the lock had ended, which Lost reports
}

// Each selects a hook.
func ran(t *Trace) func(Event)      { return t.Ran }
func skipped(t *Trace) func(Event)  { return t.Skipped }
func late(t *Trace) func(Event)     { return t.Late }
func lost(t *Trace) func(Event)     { return t.Lost }
func failed(t *Trace) func(Event)   { return t.Failed }
func unlocked(t *Trace) func(Event) { return t.Unlocked }
func differs(t *Trace) func(Event)  { return t.Differs }

// tell calls one hook of every Trace that has it. If none has it, tell logs.
func (j *job) tell(hook func(*Trace) func(Event), e Event) {
	e.Name = j.name
	wiring.Report(j.traces, &logTrace, hook, e)
}

// logTrace is the default logging, for hooks that no Trace sets. A loss is one line: a job that ends with its lock's context
// did not fail as well, and a holdfast.LogTrace has a line of its own. A tick that came too late to a replica that was paused
// may have run on another one, so that it is no error.
var logTrace = Trace{
	Late: func(e Event) {
		if e.aside {
			line(slog.LevelWarn, "cronlock: a tick came too late to this replica, another one may have run it", e)
		} else {
			line(slog.LevelError, "cronlock: a tick does not run on this replica", e)
		}
	},
	Lost: func(e Event) {
		var core interface{ Logged() bool }
		if !errors.As(e.Err, &core) || !core.Logged() {
			line(slog.LevelError, "cronlock: the lock was lost while its job ran", e)
		}
	},
	Failed: func(e Event) {
		if !e.aside || !errors.Is(e.Err, context.Canceled) && !errors.Is(e.Err, holdfast.ErrLost) {
			line(slog.LevelError, "cronlock: a job failed", e)
		}
	},
	Unlocked: func(e Event) { line(slog.LevelWarn, "cronlock: a job runs without its lock", e) },
	Differs:  func(e Event) { line(slog.LevelError, "cronlock: ticks differ between replicas", e) },
}

func line(level slog.Level, msg string, e Event) {
	slog.Log(context.Background(), level, msg, "job", e.Name, "tick", e.Tick, "err", e.Err)
}

type runKey struct{}

type running struct {
	name string
	tick time.Time
}

// Tick returns the name of the job to which ctx belongs, and the nominal time for which it runs. ok is false outside of
// a job. The fencing token is that of holdfast.Held(ctx)[0], if there is a lock.
func Tick(ctx context.Context) (name string, tick time.Time, ok bool) {
	r, ok := ctx.Value(runKey{}).(running)
	return r.name, r.tick, ok
}
