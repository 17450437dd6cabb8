// Package cronlock runs the jobs of robfig/cron once per tick, on one of the replicas that have them.
//
//	c := cron.New()
//	guard := cronlock.New(locker, c) // locker is holdfast.New(rdb)
//	_, err := guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error { ... })
//	...
//	c.Start()
//
// The context is the lock's: it ends when the lock is lost, and carries the token for a fence. [Tick] reads the job's name
// and tick from it. [Guard.Job] makes a cron.Job of a function, and [Guard.Wrap] of a cron.Job, for [cron.Cron.AddJob] and
// [cron.Cron.Schedule].
//
// # Guarantees
//
//   - A tick runs at most once, on one replica, however short the job is, however the replicas' clocks differ, and whichever
//     replicas come and go, as long as Redis keeps its data, unless [WithFailOpen] says otherwise. See [Guard] for how.
//   - It runs once if a replica that reaches Redis within the bound of [WithLateness] claims it, gets the lock within that bound,
//     and does not die before its job begins.
//   - Runs do not overlap, unless [Allow] or [WithFailOpen] lets them, or the lock has a WithLimit or WithShared, by [WithLock]
//     or by the Locker: it is that of holdfast.Key("cron", name), renewed until the job returns or panics. Requests and tasks
//     that lock the same key are kept out as well.
//   - A replica that dies in the middle of a run takes that tick with it. The next tick runs elsewhere.
//   - A job does not begin before its tick has come by the clock of Redis. A replica whose clock is ahead waits; one that is
//     ahead by more than 10 s, or behind by more than 1 h, runs nothing and keeps no other replica from it, see
//     [WithClaim]. A clock that is off by more than 1 s is logged once.
//   - Specs of one name that differ between replicas are reported: see the hook Differs of [Trace].
//
// # When things go wrong
//
//	Redis is away            asked again until the bound of WithLateness, then hook Late, an error that matches holdfast.ErrUnavailable
//	a clock is off           hook Late, holdfast.ErrTick
//	paused before the run    hook Late beyond the bound of WithLateness
//	the Guard was stopped    hook Late, holdfast.ErrClosed
//	an earlier run goes on   hook Skipped, holdfast.ErrNotAcquired
//	the lock is lost         the context ends, hook Lost, holdfast.ErrLost
//	the job fails            hook Failed, what it returned
//	the job panics           hook Failed; the panic goes on, and ends the process unless cron.Recover is in the chain
//	the job finds no tick    hook Failed, holdfast.ErrInvalid: see Guard.Job
//
// All but Skipped are logged by slog. A hook of a [Trace] replaces the log for what it hears of.
//
// # Limits
//
// A lock is a lease: a process that was paused past its end goes on beside its successor. Let the database refuse its writes,
// with sqlfence, which finds the token in the context.
//
// All replicas need the same specs and the same location. A Redis that loses its keys, to a FLUSHALL, a failover or a
// restart without persistence, may grant a tick again, to a replica that asks for it only then: within the bound of
// [WithLateness], or up to an hour later if its clock is that far behind. With appendonly yes, which is not the default, a
// restart loses nothing with appendfsync always, and up to a second of claims with everysec. A clock of Redis that is set
// forward by more than an hour, and then back, has the effect of a loss.
//
// With a Locker on several masters there is no one clock: a job begins as much too early as its replica's clock is ahead, and
// specs are not compared. When a machine or a paused process wakes up, cron runs a job once for the first tick that it slept
// through, and runs the next one late by the same time. A Guard leaves out what is too late: a replica that was awake has run
// it, or none does.
//
// Stop with [Guard.Stop], and then the Locker. A test needs no double: [Guard.RunNow] runs a job at once, on a miniredis.
package cronlock
