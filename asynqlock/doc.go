// Package asynqlock runs Asynq tasks under a distributed lock: of all tasks that name the same thing, on whichever
// server, one runs at a time, and none beside a request or a cron job that locks the same key. And it has schedulers on
// several replicas enqueue each tick once.
//
//	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id")) // locker is holdfast.New(rdb)
//	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{Concurrency: 10}))
//	mux := asynq.NewServeMux()
//	mux.Handle("payout", guard.Wrap(handler)) // or mux.Use(guard.Wrap), where all types have the field
//
// The lock's key is holdfast.Key("account", id), with the value of a field of the JSON payload, or what any function of the
// form [Part] finds. The handler's context is the lock's: it ends when the lock is lost, and carries the token that a
// fence asks for.
//
// # Guarantees
//
//   - A handler runs while the lock is held, or not at all, unless [WithFailOpen] says otherwise.
//   - The lock is held and renewed until the handler returns, whatever becomes of the task. asynq goes on without a
//     handler that outlives its timeout or a shutdown, and has the task run again beside it: that run finds the key busy.
//   - It is released when the handler returns or panics.
//   - A busy key costs a task no retry and is not counted as a failure, for as long as [WithMaxDeferral] allows. Retried,
//     failed and archived counts are those of the handlers alone.
//   - A worker does not wait for a busy key, unless [Wait] has it wait: a hot key leaves the workers to the others.
//   - Of the replicas of a [Scheduler] at most one enqueues a tick, whatever their clocks say, as long as Redis keeps its data;
//     and none before the tick has come by the clock of Redis.
//
// # When the key is busy
//
// A task without retries left, with MaxRetry(0) or on its last retry, cannot keep its ID when it gives way: asynq would archive
// it, so a new one takes its place, and its ID is free again while that waits. The new one has the ID of the first with
// "~" and a random text, which [Origin] resolves, and all the rest: type, payload, headers, queue, retries, timeout, deadline,
// retention, and what a Unique option has locked, for as long as that was to be locked. The old one is dropped without a
// record; asynq logs "revoke task" about it. A worker that is killed between the two leaves both, of which the old one is
// archived by asynq.
//
// [WithBusy] has a policy for a busy key. [Defer], the default, puts the task back: it is in asynq's state "retry", with a last
// error that says who has the key and since when the task is deferred, and what its handler had failed with before, if it had.
// It comes back when what the holder's lease had left is over, and a random part more, bounded by [WithMaxDelay]; asynq looks
// for such tasks every 5 s.
//
// Mostly it comes back much sooner: a task that ends wakes the one that gave way first, which then is the next that asynq takes
// from its queue, however many are in it. (A request or a cron job that had the lock wakes none.) Where the queue is
// empty otherwise, asynq looks into it every Config.TaskCheckInterval, 1 s by default. Another task may be quicker all the
// same, a new one or one that waits; the woken one waits for up to 100 ms then, and gives way again. Where order matters, [Wait]
// a little: waiting tasks are served in line, at the moment of the release.
//
// A Deadline runs on while a task is deferred. Where it would be over before the task came back, a worker waits for the
// key instead, until shortly before. A key that is busy for longer than that leaves no time to run in: asynq then fails
// the task by its deadline, as it does with one that waited in the queue for too long. Of a Timeout, each run has its
// own; no wait outlasts it.
//
// # Beside asynq's Unique
//
// Unique keeps a task out of the queue while an equal one, in type and payload, is in it: it is about enqueueing, ends by
// time, and says nothing about runs, of which there may be several after a timeout. A Guard is about running: tasks of any
// types and payloads that name the same thing queue up and all run, one after the other. Use both where a second request
// adds nothing: Unique drops what need not run twice, the Guard keeps apart what must not run together.
//
// # Limits
//
// A lock is a lease: a process that was paused past it goes on beside its successor. Let the database refuse it, with
// sqlfence, which finds the token in the handler's context. [WithErrorHandler] decides about a handler that ends well with a lock
// that was lost.
//
// A killed worker's lock is free when its lease is over, 15 s by default. asynq takes a minute or more to run its task
// again. Leave the lease below 30 s, and it is never what that waits for.
//
// A handler that hangs holds its key until its process ends: bound it with WithLock(holdfast.WithMaxHold(d)), which ends the
// lock, though not the handler.
//
// mux.Use wraps all handlers, and the mux's answer to unknown types: a task that names nothing is archived whatever its
// type, of which slog and [WithTrace] are told, with the type and the field. Use Wrap for single types, or a mux of their own
// for those that share a Guard. A task that a group's aggregator made is a task like others, and needs the field.
//
// A middleware in front of the Guard sees the deferral as an error, a [*DeferredError], and has to hand it on; a
// middleware behind it runs under the lock.
//
// Shut down the server before the Locker. With a ShutdownTimeout below what handlers need, asynq puts their tasks back
// while they run.
//
// # Errors
//
// What a run ends with, and what asynq makes of it:
//
//	*DeferredError             the key is busy, or Redis away: the task comes back, no retry is spent
//	holdfast.ErrNotAcquired        the key is busy, with Fail or beyond WithMaxDeferral: a failure, retried
//	holdfast.ErrLost               the lock was lost while the handler ran: a failure, retried, see WithErrorHandler
//	holdfast.ErrInvalid            no value to lock by: archived at once (it matches asynq.SkipRetry); also
//	                           a server whose Config did not go through Guard.Config: a failure
//	what the handler returned  by asynq's rules, joined with the loss where there was one
//
// A DeferredError matches what the acquisition failed with: holdfast.ErrNotAcquired, holdfast.ErrUnavailable or holdfast.ErrClosed.
//
// # Keys
//
// Beside the lock's, which package holdfast describes, and asynq's own, there is asynqlock:deferred:<key of the lock>, a sorted set
// of the tasks that gave way, by scripts with ZADD, ZREM, ZPOPMIN, PTTL and PEXPIRE. It expires with the last delay. A deferred
// task has fields more in asynq's hash of it, "holdfast" and some that begin like it, which go with the task. Of asynq's keys,
// scripts use those of the task, of the lists pending and retry, and what Unique has locked, with EXISTS, HGET, HMGET, HSET, HDEL,
// LPOS, LREM, RPUSH, ZREM, ZADD, GET and SET. Where an ACL denies it, tasks are not woken, and come back when their delay is over.
//
// # Schedulers
//
//	scheduler := asynqlock.NewScheduler(locker)
//	err := scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil))
//	...
//	err = scheduler.Start()
//
// Run it on every replica. Unlike asynq's own, it is not listed among the Inspector's SchedulerEntries. The claims of all
// entries live in the Locker's Redis, of holdfast.Key("asynq", name), until their tick is more than an hour old; a job of cronlock may have
// the same name. Where Redis loses one in that time, as in a restart without persistence, its tick may be enqueued again.
//
// A replica whose clock is ahead waits until the tick has come by the clock of Redis (TIME), and one that is off by more than
// 1 s is warned about once, by slog. One that is ahead by more than 10 s, or behind by more than 1 h, enqueues nothing. With a
// Locker on several masters there is no such clock, and a replica enqueues as much too early as its own is ahead.
//
// # Tests
//
// A handler needs no double: asynq runs on a miniredis, and a second Locker on it holds the key for "busy".
package asynqlock
