// Package asynqlock runs Asynq tasks under a distributed lock. Of all tasks that name the same thing, on any server, one runs
// at a time, and none beside a request or a cron job that locks the same key. A [Scheduler] enqueues each tick once, though it
// runs on every replica.
//
//	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id")) // locker is holdfast.New(rdb)
//	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{Concurrency: 10}))
//	mux := asynq.NewServeMux()
//	mux.Handle("payout", guard.Wrap(handler)) // or mux.Use(guard.Wrap), if all types have the field
//	err := server.Start(mux)
//
//	scheduler := asynqlock.NewScheduler(locker)
//	err = scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil))
//	err = scheduler.Start()
//
// The lock's key is holdfast.Key("account", id). The id is a field of the JSON payload, or what any [Part] finds; [WithAlso]
// adds the lock of another. The handler's context is the lock's: it ends when the lock is lost, and carries the token.
//
// # Guarantees
//
//   - A handler begins with the lock held, or not at all, unless [WithFailOpen] says otherwise.
//   - The lock is held and renewed until the handler returns or panics. asynq gives up a handler that outlives its timeout or
//     a shutdown, and runs the task again beside it: the second run finds the key busy.
//   - A busy key costs a task no retry and is not a failure, for as long as [Policy.MaxDeferral] and a Deadline allow, but
//     with [Fail]. As far as that goes, asynq's counts of retries, failed and archived tasks are those of the handlers, and
//     of tasks that name nothing to lock by; a deferred task counts among those in state "retry".
//   - A worker waits for a busy key only by [Wait], or as [Defer] says: a hot key leaves the workers to other tasks.
//   - At most one replica of a [Scheduler] enqueues a tick, whatever their clocks say, as long as Redis keeps its data and its
//     clock is not set back, and none does so before the tick has come by that clock, but with several masters.
//
// # Limits
//
// A lock is a lease: a process that was paused past its end goes on beside its successor. Let the database refuse its writes,
// with sqlfence, which finds the token in the handler's context. [WithErrorHandler] decides about a handler that succeeds
// after its lock was lost.
//
// The lock of a killed worker is free when its lease is over, 15 s by default. Asynq takes a worker for dead after 30 s, finds
// that out within a minute more, and runs its task after the retry delay, which spends a retry: keep the lease below 30 s. It
// also runs a task again whose handler had committed: store its [Origin] in the same transaction, and look for it first.
//
// A handler that hangs holds its key until its process ends. WithLock(holdfast.WithMaxHold(d)) ends the lock, though not the
// handler.
//
// A task without retries left that gives way comes back under another ID, see [Defer]. A task that names nothing to lock by is
// archived: after mux.Use(guard.Wrap) every type without the field, and what a group's aggregator makes without it.
//
// Shut down the server and the Scheduler before the Locker. With a ShutdownTimeout below what handlers need, asynq puts their
// tasks back while they run.
//
// # Errors
//
//	*DeferredError           the key is busy, or Redis is away: the task comes back, and spends no retry
//	holdfast.ErrNotAcquired  the key is busy, with Fail or beyond MaxDeferral: a failure, retried
//	holdfast.ErrUnavailable  Redis is away beyond MaxDeferral: a failure, retried
//	holdfast.ErrLost         the lock was lost while the handler ran: a failure, retried, see WithErrorHandler
//	holdfast.ErrInvalid      the task names nothing to lock by: archived at once (it matches asynq.SkipRetry); or the
//	                         server's Config did not go through Guard.Config: a failure
//	the handler's own error  by asynq's rules, joined with the loss if there was one: return ctx.Err()
//
// The keys in Redis, for an ACL, are at [Guard]. In a test, asynq runs on a miniredis, and a second Locker keeps a key busy. A
// handler called without a server needs Fail, and guard.Config(asynq.Config{}).BaseContext() as its context.
package asynqlock
