// Package gocronlock runs the jobs of gocron, github.com/go-co-op/gocron/v2, on one of the replicas that have them.
//
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.New(locker, 30*time.Second))) // locker is holdfast.New(rdb)
//	...
//	_, err = s.NewJob(gocron.CronJob("0 6 * * *", false), gocron.NewTask(invoices), gocron.WithName("invoices"))
//
// [New] gives each run of a job to one replica. [NewElector] gives all runs of all jobs to one replica, the leader, as long as
// it lives. A Locker is the better choice unless the jobs share state in memory: it needs no lease to end before another
// replica takes over, and a change of the leader can run a job twice. Package cronlock, for robfig/cron, promises more: it knows
// the tick for which a job runs, ends the job's context when the lock is lost, and gives the job a fencing token.
//
// # Guarantees
//
// gocron passes a Locker the name of a job, but not the time at which the job was due. So a Locker reads the replica's clock, and
// lets Redis keep the readings at which a job runs gap apart.
//
//   - Each tick runs at most once if the ticks of a job are more than gap apart, and each replica calls the Locker less than
//     gap after the tick, by its own clock: however short the job is, and however much the clocks of the replicas differ, as
//     long as Redis keeps its data. Replicas whose clocks differ ask at different moments, but read the same time then.
//   - A tick does run if a replica calls the Locker that early, gets an answer from Redis and the lock within gap, and does not
//     die before the job begins.
//   - Runs of a job do not overlap. They hold the lock of holdfast.Key("cron", name), renewed until the job returns. It also
//     excludes jobs of package cronlock and others who take that lock.
//   - A job does not begin before its tick by the clock of Redis, if the scheduler's clock is the replica's: a replica that is
//     ahead waits. One that is ahead by more than 10 s, or behind by more than 1 h, runs nothing.
//   - On an [Elector]'s replica no job begins after its leadership has ended.
//
// # Limits
//
// The names of the jobs must be the same on all replicas, and differ from each other: see gocron.WithName.
//
// A replica that dies has used up its tick. The next one runs elsewhere, if the lease of the lock has ended by then or ends
// within gap: see holdfast.WithTTL.
//
// A gocron.DurationJob has ticks of its own on each replica, counted from its start. Give these jobs a Locker with a gap a little
// below the period, by gocron.WithDistributedJobLocker; then they run once per period. gocron.WithStartAt makes the ticks the same.
//
// gocron hands no lock to a job. A job that outlives a lost lock, in a process that was paused, may run alongside the next run.
// slog reports that, and a tick that does not run because Redis is unavailable or a clock is off.
package gocronlock
