// Package ticks has the schedules that cronlock and asynqlock share. They are those of robfig/cron, by its interface.
package ticks

import "time"

// Every is the schedule of "@every": its ticks are at the multiples of a period since 1970, at least 1 s and in whole
// seconds as cron's. cron's own counts from its start. So each replica would have ticks of its own, and one that restarts
// more often than the period would have none.
type Every time.Duration

// Next returns the first tick after now.
func (e Every) Next(now time.Time) time.Time {
	period := max(1, int64(time.Duration(e)/time.Second))
	return time.Unix((now.Unix()/period+1)*period, 0).In(now.Location())
}

// Skewed is the schedule of a replica whose clock is ahead, in tests.
type Skewed struct {
	Schedule interface{ Next(time.Time) time.Time }
	Ahead    time.Duration
}

// Next returns the first tick after now, both by the clock that is ahead.
func (s Skewed) Next(now time.Time) time.Time { return s.Schedule.Next(now.Add(s.Ahead)).Add(-s.Ahead) }
