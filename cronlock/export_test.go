package cronlock

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
	"github.com/robfig/cron/v3"
)

// Ahead is for a replica whose clock is ahead by d of all others; its schedules are those that Skewed returns.
func Ahead(d time.Duration) Option {
	return option(func(c *config) { c.ahead = d })
}

func Skewed(s cron.Schedule, d time.Duration) cron.Schedule {
	return ticks.Skewed{Schedule: s, Ahead: d}
}
