// Package asynqlock runs Asynq tasks under a distributed lock. Tasks that name the same thing run one at a time, on all
// servers together, and never alongside a request or a cron job that locks the same key. A [Scheduler] can run on every
// replica: each tick is enqueued once.
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
// The lock's key is holdfast.Key("account", id). The id is a field of the JSON payload, or what any [Part] returns.
// [WithAlso] adds a second lock. The handler's context is the lock's: it ends when the lock is lost, and carries the token.
//
// # Guarantees
//
//   - A handler begins with the lock held, or not at all, unless [WithFailOpen] says otherwise.
//   - The lock is held and renewed until the handler returns or panics. If a handler outlives its timeout or a shutdown,
//     asynq abandons it and runs the task again alongside it. That second run finds the key busy.
//   - A busy key costs a task no retry and is not a failure, except with [Fail], after [Policy.MaxDeferral], if the task's
//     Deadline passes, or if a task without retries left cannot be deferred: see [Defer]. A deferred task is in state
//     "retry". What else fails a task is listed under Errors.
//   - A worker waits for a busy key only with [Wait], or as [Defer] says. A hot key leaves the workers to other tasks.
//   - At most one replica of a [Scheduler] enqueues a tick, however much their clocks differ, as long as Redis keeps its
//     data and its clock is not set back. None enqueues it early by that clock, except with several masters.
//
// # Limits
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only what stores the data
// can refuse those writes, by the token: see package sqlfence, which finds it in the handler's context. [WithErrorHandler]
// decides about a handler that succeeds after its lock was lost.
//
// The lock of a killed worker is free when its lease has expired, after 15 s by default. asynq considers a worker dead after
// 30 s, notices it within another minute, and reruns its task after the retry delay, which spends a retry. Keep the TTL
// below 30 s. asynq can also rerun a task whose handler has committed: store the task's [Origin] in that transaction, and
// look for it first.
//
// A hung handler holds its key until its process ends. WithLock(holdfast.WithMaxHold(d)) ends the lock, but not the handler.
//
// A deferred task without retries left comes back under another ID: see [Defer]. A task without the field has no key: it is
// archived. After mux.Use(guard.Wrap) that includes every type without it, and what a group's aggregator makes without it.
//
// Shut down the server and the Scheduler before the Locker. If the server's ShutdownTimeout is shorter than its handlers
// need, asynq puts their tasks back in the queue while they run.
//
// # Errors
//
//	*DeferredError           the key is busy, or Redis is unavailable: the task comes back, and spends no retry
//	holdfast.ErrNotAcquired  the key is busy, with Fail or after MaxDeferral: a failure, retried
//	holdfast.ErrUnavailable  Redis is unavailable after MaxDeferral: a failure, retried
//	holdfast.ErrLost         the lock was lost while the handler ran: a failure, retried; see WithErrorHandler
//	holdfast.ErrInvalid      the task has no key: archived at once (it matches asynq.SkipRetry too); or the server's
//	                         Config did not go through Guard.Config: a failure
//	the handler's own error  by asynq's rules, joined with ErrLost if the lock was lost; return ctx.Err() when ctx ends
//
// [Guard] lists the keys in Redis, for an ACL. In a test, asynq runs on miniredis, and a second Locker keeps a key busy. To
// call a handler without a server, use [Fail], and guard.Config(asynq.Config{}).BaseContext() as its context.
package asynqlock
