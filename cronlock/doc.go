// Package cronlock runs the jobs of robfig/cron once per tick, on one of the replicas that have them. A tick is the nominal
// time at which a job is due.
//
//	c := cron.New()
//	guard := cronlock.New(locker, c) // locker is holdfast.New(rdb)
//	_, err := guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error { ... })
//	...
//	c.Start()
//
// The job's context is that of its lock: it ends when the lock is lost, and it carries the fencing token. [Tick] returns the
// job's name and tick from it. [Guard.Job] turns a function into a cron.Job for [cron.Cron.AddJob] and [cron.Cron.Schedule],
// and [Guard.Wrap] does the same with an existing cron.Job.
//
// # Guarantees
//
//   - A tick runs at most once, on one replica, as long as Redis keeps its data, except under [WithFailOpen]. That also
//     holds for short jobs, for clocks that differ, and while replicas come and go: see [Guard].
//   - A tick does run if a replica reaches Redis, claims the tick and gets the lock, all within the bound of [WithLateness],
//     and does not die before its job begins.
//   - Runs of a job do not overlap. Their lock is that of holdfast.Key("cron", name), renewed until the job returns or
//     panics. It also excludes requests and tasks that lock the same key. The exceptions are [Allow], [WithFailOpen], and a
//     lock with [holdfast.WithLimit] or [holdfast.WithShared], from [WithLock] or from the Locker.
//   - If a replica dies during a run, that tick does not run again. The next tick runs on another replica.
//   - A job does not begin before its tick by the clock of Redis, except under [WithFailOpen]. A replica whose clock is
//     ahead waits. One that is ahead by more than 10 s, or behind by more than 1 h, runs nothing, and keeps no other replica
//     from running the tick: see [WithClaim]. A clock that is off by more than 1 s is logged once.
//   - Specs of one name that differ between replicas are reported: see the hook Differs of [Trace].
//
// # When things go wrong
//
//	Redis is unavailable       asked again until the bound of WithLateness, then hook Late, holdfast.ErrUnavailable
//	a clock is off             hook Late, holdfast.ErrTick
//	paused before the run      hook Late, if beyond the bound of WithLateness
//	the Guard was stopped      hook Late, holdfast.ErrClosed
//	an earlier run goes on     hook Skipped, holdfast.ErrNotAcquired: see WithBusy
//	the lock is lost           the context ends, hook Lost, holdfast.ErrLost
//	the job returns an error   hook Failed, with that error
//	the job panics             hook Failed; the panic continues and ends the process unless cron.Recover is in the chain
//	the job finds no tick      hook Failed, holdfast.ErrInvalid: see Guard.Job
//
// slog logs all of these except Skipped. Setting a hook replaces the default logging of what that hook reports.
//
// # Limits
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only what stores the data
// can refuse those writes, by the fencing token: see package sqlfence, which finds it in the job's context.
//
// A Redis that loses its keys (FLUSHALL, a failover, a restart without persistence) can grant a tick again, to a replica
// that claims it after the loss. A replica claims a tick within the bound of [WithLateness], or within an hour of the tick
// if its clock is that far behind. If Redis has appendonly yes (the default is no), a restart loses nothing with appendfsync
// always, and up to a second of claims with everysec. Setting the clock of Redis more than an hour forward and back again is
// such a loss too.
//
// All replicas need the same specs and the same location. With several masters ([holdfast.NewRedLock]) specs are not
// compared. There is no single clock either: a job begins as much too early as its replica's clock is ahead.
//
// When a machine or a paused process wakes up, cron runs the first tick that it slept through and usually the next one,
// equally late, and drops the others. A Guard does not run a tick that is too late: another replica runs it, or none.
//
// Stop the Guard with [Guard.Stop] before the Locker. A test can use miniredis: [Guard.RunNow] runs a job at once.
package cronlock
