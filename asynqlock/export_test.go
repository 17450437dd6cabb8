package asynqlock

import "time"

// Ahead is for a replica whose clock is ahead by d of all others.
func Ahead(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.ahead = d })
}

// At has the scheduler see the tick of an entry that was due then.
func (s *Scheduler) At(name string, due time.Time) {
	s.cron.Entry(s.entries[name]).Job.(*entry).at(due)
}
