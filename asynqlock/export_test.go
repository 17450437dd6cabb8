package asynqlock

import (
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Ahead is for a replica whose clock is ahead by d of all others.
func Ahead(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.ahead = d })
}

// ListEvery has the entries listed more rarely, for tests of long times.
func ListEvery(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.listEvery = d })
}

// At has the scheduler see the tick of an entry that was due then.
func (s *Scheduler) At(name string, due time.Time) {
	s.cron.Entry(s.entries[name]).Job.(*entry).at(due)
}

// RunScript is run.lua, KeepScript keep.lua, and DeferScript defer.lua.
var (
	RunScript   = runScript
	KeepScript  = keepScript
	DeferScript = deferScript
)

// WakeAtTheEnd has woken tasks stand where asynq puts what comes, until the function that it returns is called. No other test
// may run meanwhile.
func WakeAtTheEnd() (restore func()) {
	runScript = redis.NewScript(asynqNames + strings.Replace(runText, "'RPUSH'", "'LPUSH'", 1))
	return func() { runScript = RunScript }
}
