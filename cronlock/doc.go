// Package cronlock runs the jobs of robfig/cron, or of a fork of it, once per tick, on one of the replicas that have them. A tick
// is the nominal time at which a job is due.
//
//	c := cron.New()
//	guard := cronlock.New(locker, c) // locker is holdfast.New(rdb)
//	_, err := guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error { ... })
//	...
//	c.Start()
//
// The job's context is that of its lock: it ends when the lock is lost, and it carries the fencing token. All replicas need
// the same specs and the same location. Stop the Guard with [Guard.Stop] before the Locker.
//
// # Guarantees
//
//   - A tick runs at most once, on one replica, as long as Redis keeps its data: however short the job is, and however much
//     the clocks differ.
//   - A tick does run if a replica claims it and gets the lock within the bound of [WithLateness], and does not die before
//     its job begins. If a replica dies during a run, that tick does not run again. The next one runs on another replica.
//   - Runs of a job do not overlap. Their lock is that of holdfast.Key("cron", name), renewed until the job returns or
//     panics. It also excludes requests and tasks that lock that key.
//   - A job does not begin before its tick by the clock of Redis: a replica whose clock is ahead waits. One that is ahead by
//     more than 10 s, or behind by more than 1 h, runs nothing: see [WithClaim].
//
// [WithFailOpen] gives these up while Redis is unavailable. [Allow], and [holdfast.WithLimit] or [holdfast.WithShared] for the
// lock, let runs overlap.
//
// # Limits
//
// A process that is paused past its lease can write alongside its successor, unless what stores the data compares fencing
// tokens: see package sqlfence.
//
// A Redis that loses its keys can grant a tick again, to a replica that claims it after the loss. cronlock/limits.md has
// more, also on time zones, cron's chain, several masters, and an ACL.
package cronlock
