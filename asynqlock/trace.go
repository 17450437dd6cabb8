package asynqlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine that does the work, so they must return quickly, and several may run at once. A Guard's hooks get a context with
// asynq's metadata, such as the task's ID. A [holdfast.Trace] of the Locker reports what happens to the lock itself.
type Trace struct {
	// Deferred: the task is deferred and comes back after Delay. Since is the time of its first deferral, Err the reason.
	Deferred func(context.Context, Event)
	// HandedOn, instead of Deferred: the task comes back as a new one, because asynq would have archived this one. Since,
	// Delay and Err are as for Deferred.
	HandedOn func(context.Context, Event)
	// Skipped: the task was completed without running, see [Skip].
	Skipped func(context.Context, Event)
	// Failed: the task fails because the key was busy, or after [Policy.MaxDeferral] also because Redis was unavailable or
	// the Locker shut down: Err says which. See [Fail]. Since is set if the task was deferred.
	Failed func(context.Context, Event)
	// Lost: the lock was lost while the handler ran. Err matches holdfast.ErrLost.
	Lost func(context.Context, Event)
	// Unreleased: Redis did not confirm the release, see [holdfast.Lock.Release]. The lock can stay until its lease expires.
	Unreleased func(context.Context, Event)
	// Unlocked: the task runs without the lock, see [WithFailOpen].
	Unlocked func(context.Context, Event)
	// Unnamed: the task fails without running, because it has no key. Err says what it lacks. Key is empty.
	Unnamed func(context.Context, Event)

	// Enqueued: this replica enqueued the task of a tick. Info is set, unless the answer of Redis was lost.
	Enqueued func(context.Context, Event)
	// Elsewhere: another replica enqueued the tick, or is about to.
	Elsewhere func(context.Context, Event)
	// Missed: this replica did not enqueue the tick. Another replica may have done so. Err matches holdfast.ErrUnavailable,
	// holdfast.ErrTick if a clock is off, asynq.ErrDuplicateTask, and so on; or it says how late the tick came to this
	// replica, as to a process that was paused.
	Missed func(context.Context, Event)
}

// Event is what a [Trace] hook is called with. A Guard's hooks get Task, Key and Err, a Scheduler's get Name, Tick and Err.
// The other fields are zero unless the hook's comment names them.
type Event struct {
	Task  *asynq.Task
	Key   string        // of the lock, without the Locker's prefix; with WithAlso, of the busy lock or else of the first
	Since time.Time     // of the first deferral
	Delay time.Duration // of this deferral

	Name string // of the entry
	Tick time.Time
	Info *asynq.TaskInfo // of what was enqueued

	Err error
}

// hook selects one of the hooks of a Trace.
type hook func(*Trace) func(context.Context, Event)

func deferredHook(t *Trace) func(context.Context, Event)   { return t.Deferred }
func handedOnHook(t *Trace) func(context.Context, Event)   { return t.HandedOn }
func skippedHook(t *Trace) func(context.Context, Event)    { return t.Skipped }
func failedHook(t *Trace) func(context.Context, Event)     { return t.Failed }
func lostHook(t *Trace) func(context.Context, Event)       { return t.Lost }
func unreleasedHook(t *Trace) func(context.Context, Event) { return t.Unreleased }
func unlockedHook(t *Trace) func(context.Context, Event)   { return t.Unlocked }
func unnamedHook(t *Trace) func(context.Context, Event)    { return t.Unnamed }
func enqueuedHook(t *Trace) func(context.Context, Event)   { return t.Enqueued }
func elsewhereHook(t *Trace) func(context.Context, Event)  { return t.Elsewhere }
func missedHook(t *Trace) func(context.Context, Event)     { return t.Missed }

type traces []*Trace

// tell calls one hook of every trace, or that of logTrace if none of them sets it.
func (ts traces) tell(ctx context.Context, h hook, e Event) {
	told := false
	for _, t := range ts {
		if f := h(t); f != nil {
			f(ctx, e)
			told = true
		}
	}
	if f := h(&logTrace); !told && f != nil {
		f(ctx, e)
	}
}

// logTrace has the hooks that apply if no Trace sets them.
var logTrace = Trace{
	Lost: func(ctx context.Context, e Event) {
		slog.ErrorContext(ctx, "asynqlock: the lock was lost while its task ran", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx).id, "err", e.Err)
	},
	Unlocked: func(ctx context.Context, e Event) {
		slog.WarnContext(ctx, "asynqlock: a task runs without its lock", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx).id, "err", e.Err)
	},
	Unnamed: func(ctx context.Context, e Event) {
		// The server has a handler for this type, which then never runs. The cause is a mistake in the wiring as often as
		// one in the payload.
		slog.ErrorContext(ctx, "asynqlock: a task without a key is archived: use mux.Handle with Guard.Wrap if some types have no key",
			"type", e.Task.Type(), "err", e.Err)
	},
	Missed: func(ctx context.Context, e Event) {
		slog.ErrorContext(ctx, "asynqlock: a tick was missed on this replica", "name", e.Name, "tick", e.Tick, "err", e.Err)
	},
}
