// Package cronlock runs the jobs of robfig/cron once per tick, on one of the replicas that have them.
//
//	c := cron.New()
//	guard := cronlock.New(locker, c) // locker is holdfast.New(rdb)
//	_, err := guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error { ... })
//	...
//	c.Start()
//
// The context is the lock's: it ends when the lock is lost, and carries the token that a fence asks for; [Tick] and [Name]
// read the rest from it. Jobs of the type cron.Job are wrapped by [Guard.Wrap], and [Guard.Job] is for [cron.Cron.AddJob].
//
// # Guarantees
//
//   - A tick runs at most once, on whichever replica, however short the job is, however the clocks of the replicas differ,
//     and whichever replicas come and go, as long as Redis keeps its data. A replica claims the tick by its nominal time with
//     [holdfast.Locker.Claim], under holdfast.Key("cron", name), before it runs it; nothing has to be kept for long enough, or released.
//     An entry of asynqlock's Scheduler may have the same name.
//   - It runs once if a replica that reaches Redis within the bound of [WithLateness] claims it, gets the lock within it, and
//     does not die before its job begins. A claim whose answer is lost is asked for again, as the same claim.
//   - Runs do not overlap, unless [Allow] says so: beside the claim there is a lock, renewed until the job returns. It
//     is the lock of that name, so that requests and tasks can be kept out as well, and it is released when the job returns
//     or panics.
//   - A replica that dies in the middle of a run takes that tick with it. The next one runs elsewhere: the lease is half of
//     the period, from 500 ms to 15 s, and who finds the lock held waits for what may be left of a dead holder's.
//   - A job does not begin before its tick has come by the clock of Redis: a replica whose own is ahead waits for it. With a
//     Locker on several masters there is no such clock, and the job begins by as much too early.
//   - A replica whose clock is ahead by more than 10 s, or behind by more than 1 h, runs nothing and keeps nobody from it,
//     see [WithTickWindow]. Where a clock is off by more than 1 s, slog is told once.
//   - Different ticks for one name are reported: see the hook Differs.
//
// # Ticks
//
// A tick is what cron calls the previous time of an entry, read when the job begins. It is a moment, and so the same in all
// time zones: when the clocks go back, "30 2 * * *" has two ticks an hour apart, as cron has them. All replicas need
// the same specs and the same location.
//
// "@every 10s" is counted by each replica from its own start, so that its ticks differ. There a tick is granted when it
// is a period after the one before, or more: runs are a period apart, as far as the clocks agree, and up to two after the
// replica that ran them has gone.
//
// The job reads its tick wherever it is in the cron's chain. A wrapper of the chain that holds it up until the next tick
// has come (DelayIfStillRunning does) makes it read that one: the earlier one is left out on this replica, and none
// runs twice. SkipIfStillRunning and DelayIfStillRunning know of one replica; here they are not needed. A panic ends the
// process unless cron.Recover is in the chain, which it is not by default: behind SkipIfStillRunning, which skips for ever
// otherwise.
//
// # When things go wrong
//
//	Redis is away            asked again until the bound of WithLateness, then hook Late, an error that matches holdfast.ErrUnavailable
//	a clock is off           hook Late, holdfast.ErrTick
//	paused before the run    hook Late beyond the bound of WithLateness
//	the Guard was stopped    hook Late, ErrStopped
//	an earlier run goes on   hook Skipped, holdfast.ErrNotAcquired
//	the lock is lost         the context ends, hook Lost, holdfast.ErrLost
//	the job fails            hook Failed, what it returned
//	the job panics           hook Failed; the panic goes on
//	the job is misplaced     hook Failed, holdfast.ErrInvalid
//
// All but Skipped are logged by slog, unless there is a Trace.
//
// # Limits
//
// A lock is a lease: a process that was paused past it goes on beside its successor. Let the database refuse it, with
// sqlfence, which finds the token in the context.
//
// The memory of a name is a key of Redis, which expires when its tick is more than an hour old (WithTickWindow). A claim
// of a tick that old is refused. A Redis that loses the key within the hour, to a FLUSHALL, a failover or a restart without
// persistence, may grant a tick again to a replica that is as late. A restart loses nothing with appendonly yes and
// appendfsync always, and up to a second of claims with everysec, the default.
//
// What was due while a machine slept, cron runs once when it wakes up, for the first tick that was missed. Here that is
// too late; the other replicas have run it.
//
// Stop with [Guard.Stop], and then the Locker.
//
// # Keys
//
// Beside the lock's and the claim's, which package holdfast describes, and the command TIME, there is cronlock:spec:<key of the lock>, by SET, GET and
// PEXPIRE: what replicas compare their ticks by. It expires two minutes and two periods after the last replica. Where an
// ACL denies it, or with a Locker on several masters, nothing is compared.
//
// # Tests
//
// A job needs no double: [Guard.RunNow] runs it at once, on a miniredis.
package cronlock
