package asynqlock

import "time"

// Ahead is for a replica whose clock is ahead by d of all others.
func Ahead(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.ahead = d })
}
