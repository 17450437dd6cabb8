package asynqlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. They run on the
// goroutine that does the work, so they must return quickly, and several may run at once. A [holdfast.Trace] of the
// Locker reports what happens to the lock.
type Trace struct {
	// Deferred: the task comes back after Delay. Since is set.
	Deferred func(context.Context, Event)
	// Skipped: see [Skip].
	Skipped func(context.Context, Event)
	// Failed: the task fails without running, by [Fail] or [Policy.MaxDeferral]. Since is set if it was deferred.
	Failed func(context.Context, Event)
	// Lost: the lock was lost while the handler ran.
	Lost func(context.Context, Event)
	// Unreleased: Redis did not confirm the release. The lock can stay until its lease expires.
	Unreleased func(context.Context, Event)
	// Unlocked: the task runs without the lock, see [WithFailOpen].
	Unlocked func(context.Context, Event)
	// Unnamed: the task has no key.
	Unnamed func(context.Context, Event)

	// Enqueued: this replica enqueued the task of a tick. Info is set, unless the answer of Redis was lost.
	Enqueued func(context.Context, Event)
	// Elsewhere: another replica has the tick; or, by asynq.Unique, the task of an earlier tick is still queued, and Err
	// matches asynq.ErrDuplicateTask.
	Elsewhere func(context.Context, Event)
	// Missed: this replica did not enqueue the tick; another may have. Err matches holdfast.ErrUnavailable,
	// tick.ErrWindow if a clock is off, and so on, or says how late the tick came to a process that was paused.
	Missed func(context.Context, Event)
}

// Event is what a [Trace] hook is called with. What does not concern the hook is zero.
type Event struct {
	Task  *asynq.Task
	Key   string        // of the busy lock, or else of the first, without the Locker's prefix
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

func (ts traces) tell(ctx context.Context, h hook, e Event) { wiring.Tell(ts, &logTrace, h, ctx, e) }

// logTrace has the hooks that apply if no Trace sets them. A loss is one line: a holdfast.LogTrace has it in place of
// this. A tick that came too late to a replica that was paused may have been enqueued by another one, so that it is no
// error.
var logTrace = Trace{
	Lost: func(ctx context.Context, e Event) {
		var core interface{ Logged() bool }
		if errors.As(e.Err, &core) && core.Logged() {
			return
		}
		slog.ErrorContext(ctx, "asynqlock: the lock was lost while its task ran", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx, "").id, "err", e.Err)
	},
	Unlocked: func(ctx context.Context, e Event) {
		slog.WarnContext(ctx, "asynqlock: a task runs without its lock", "key", e.Key, "type", e.Task.Type(), "id", refOf(ctx, "").id, "err", e.Err)
	},
	Unnamed: func(ctx context.Context, e Event) {
		// The server has a handler for this type, which then never runs. The cause is a mistake in the wiring as often as
		// one in the payload.
		slog.ErrorContext(ctx, "asynqlock: a task without a key is archived: use mux.Handle with Guard.Wrap if some types have no key",
			"type", e.Task.Type(), "err", e.Err)
	},
	Missed: func(ctx context.Context, e Event) {
		level, msg := slog.LevelError, "asynqlock: a tick was missed on this replica"
		if errors.Is(e.Err, tick.ErrLate) {
			level, msg = slog.LevelWarn, "asynqlock: a tick came too late to this replica, another one may have enqueued it"
		}
		slog.Log(ctx, level, msg, "name", e.Name, "tick", e.Tick, "err", e.Err)
	},
}
