// Package asynqlock runs Asynq tasks under a distributed lock. Tasks that name the same thing run one at a time, on all
// servers together, and never alongside a request or a cron job that locks the same key. A [Scheduler], on every replica,
// enqueues each tick once.
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
// The lock's key is holdfast.Key("account", id). The id is a field of the JSON payload, or what any [Part] returns. The
// handler's context is the lock's: it ends when the lock is lost, and carries the token.
//
// # Guarantees
//
//   - A handler begins with the lock held, or not at all. [WithFailOpen] makes the one exception.
//   - The lock is held and renewed until the handler returns or panics. If asynq abandons a handler and runs its task again
//     alongside it, the second run finds the key busy.
//   - A task that finds its key busy comes back under its own ID and spends no retry, unless [Fail] or [Skip] says
//     otherwise, and within the bounds that [Defer] names. A hot key leaves the workers to other tasks, except with
//     [Wait].
//   - At most one replica of a [Scheduler] enqueues a tick, however much their clocks differ, as long as Redis keeps its
//     data and its clock is not set back.
//
// # Limits
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only what stores the
// data can refuse those writes, by the token: see package sqlfence, which finds it in the handler's context.
//
// The lock of a killed worker is free when its lease has expired, after 15 s by default. asynq notices after 30 to 90 s,
// and retries the task: keep the TTL below 30 s. It can also rerun a task whose handler has committed: store the task's
// ID in that transaction, and look for it first.
//
// WithLock(holdfast.WithMaxHold(d)) ends the lock of a handler that hangs, but not the handler. So does WithProgress for
// one that calls holdfast.Progress.
//
// Tasks of a key run in the order of their enqueueing only by [WithOrder].
//
// A task without a key is archived. After mux.Use(guard.Wrap) that is any task without the field, of whatever type, and
// what a group's aggregator makes without it.
//
// Shut down the server and the Scheduler before the Locker. If the server's ShutdownTimeout is too short for its handlers,
// asynq puts their tasks back in the queue while they run.
//
// # Errors
//
//	*DeferredError           the key is busy, or Redis is unavailable: the task comes back, and spends no retry
//	holdfast.ErrNotAcquired  the key is busy, with Fail or after MaxDeferral: a failure, retried
//	holdfast.ErrUnavailable  Redis is unavailable after MaxDeferral: a failure, retried; ErrClosed after a Shutdown
//	holdfast.ErrLost         the lock was lost while the handler ran: a failure, retried
//	holdfast.ErrInvalid      the task has no key: archived at once (it matches asynq.SkipRetry too); or the server's
//	                         Config did not go through Guard.Config: a failure
//	the handler's own error  by asynq's rules, joined with ErrLost if the lock was lost; return ctx.Err() when ctx ends
package asynqlock
