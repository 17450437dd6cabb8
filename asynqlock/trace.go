package asynqlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
)

// Trace is a set of hooks for a Guard and for a Scheduler, in the manner of net/http/httptrace.ClientTrace. Any may be nil.
// They run in the goroutine of the worker, or of the tick, and must return soon; several may run at once. The context of a
// Guard's hook has asynq's metadata, such as the task's ID. What happens to the lock itself is told to a
// [holdfast.Trace] of the Locker.
type Trace struct {
	// Deferred: the task gave way and comes back after Delay. Since is the time of its first deferral, Err says why.
	Deferred func(context.Context, Event)
	// HandedOn, in place of Deferred: the task comes back as a new one, because asynq would have archived this one. Since, Delay
	// and Err are as for Deferred.
	HandedOn func(context.Context, Event)
	// Skipped: the task was completed without a run, see [Skip].
	Skipped func(context.Context, Event)
	// Failed: the key was busy, and that was a failure, see [Fail] and [Policy.MaxDeferral]. Since is set if the
	// task was deferred.
	Failed func(context.Context, Event)
	// Lost: the lock was lost while the handler ran. Err matches holdfast.ErrLost.
	Lost func(context.Context, Event)
	// Unreleased: Redis did not confirm the release, see [holdfast.Lock.Release]. The lock may stay until its lease ends.
	Unreleased func(context.Context, Event)
	// Unlocked: the task runs without the lock, see [WithFailOpen].
	Unlocked func(context.Context, Event)
	// Unnamed: the task fails without a run, as it names nothing to lock by. Err says what it lacks; there is no Key.
	Unnamed func(context.Context, Event)

	// Enqueued: a Scheduler enqueued a tick here. Name and Tick, as with the next two; Info, where Redis said so.
	Enqueued func(context.Context, Event)
	// Elsewhere: another replica enqueued the tick, or is about to.
	Elsewhere func(context.Context, Event)
	// Missed: the tick was not enqueued here. Another replica may have enqueued it all the same. Err is
	// holdfast.ErrUnavailable, holdfast.ErrTick for a clock that is off, asynq.ErrDuplicateTask, ...
	Missed func(context.Context, Event)
}

// Event is what a [Trace] hook is told. The hooks of a Guard have Task, Key and Err, those of a Scheduler Name, Tick and Err;
// other fields that a hook's comment does not name are zero.
type Event struct {
	Task  *asynq.Task
	Key   string        // of the lock, without the Locker's prefix; with WithAlso of the one that is busy, or else the first
	Since time.Time     // of the first deferral
	Delay time.Duration // of this one

	Name string // of the entry
	Tick time.Time
	Info *asynq.TaskInfo // of what was enqueued

	Err error
}

// hook is one of a Trace.
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

// tell calls one hook of every trace, or of the log where none has it.
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

// logTrace is for hooks that no Trace sets.
var logTrace = Trace{
	Lost: func(ctx context.Context, e Event) {
		slog.ErrorContext(ctx, "asynqlock: the lock was lost while its task ran", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx).id, "err", e.Err)
	},
	Unlocked: func(ctx context.Context, e Event) {
		slog.WarnContext(ctx, "asynqlock: a task runs without its lock", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx).id, "err", e.Err)
	},
	Unnamed: func(ctx context.Context, e Event) {
		// The server has a handler for this type, which then never runs: that is a mistake in its wiring as often as one in the
		// payload.
		slog.ErrorContext(ctx, "asynqlock: a task that names nothing to lock by is archived: use mux.Handle with Guard.Wrap where not all types have a key",
			"type", e.Task.Type(), "err", e.Err)
	},
	Missed: func(ctx context.Context, e Event) {
		slog.ErrorContext(ctx, "asynqlock: a tick was missed on this replica", "name", e.Name, "tick", e.Tick, "err", e.Err)
	},
}
