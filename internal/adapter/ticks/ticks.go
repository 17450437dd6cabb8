// Package ticks has the schedules that cronlock and asynqlock share. They are those of robfig/cron, by its interface.
package ticks

import (
	"fmt"
	"reflect"
	"time"

	"github.com/holdfast-go/holdfast/core/tick"
)

// Schedule is a cron.Schedule of robfig/cron or of a fork.
type Schedule interface{ Next(time.Time) time.Time }

// Delay returns the period of a schedule that each cron counts from its start, as "@every" does, or 0. That of a fork has another
// type of the same name.
func Delay(s Schedule) time.Duration {
	if fmt.Sprintf("%T", s) != "cron.ConstantDelaySchedule" {
		return 0
	}
	return time.Duration(reflect.ValueOf(s).FieldByName("Delay").Int())
}

// longestGap is the longest gap that tick.WithMinGap takes.
const longestGap = 366 * 24 * time.Hour

// Gap returns the option for claims of ticks that each replica counts from its own start: those granted must be a period apart.
func Gap(s Schedule) []tick.Option {
	if delay := Delay(s); delay != 0 {
		return []tick.Option{tick.WithMinGap(min(delay, longestGap))}
	}
	return nil
}

// Stateless reports whether Next of s can be called beside its cron. That of a user may change a state.
func Stateless(s Schedule) bool {
	_, every := s.(Every)
	return every || Delay(s) != 0 || fmt.Sprintf("%T", s) == "*cron.SpecSchedule"
}

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
	Schedule Schedule
	Ahead    time.Duration
}

// Next returns the first tick after now, both by the clock that is ahead.
func (s Skewed) Next(now time.Time) time.Time { return s.Schedule.Next(now.Add(s.Ahead)).Add(-s.Ahead) }

// True is s by the true clock.
func True(s Schedule) Schedule {
	if skewed, ok := s.(Skewed); ok {
		return skewed.Schedule
	}
	return s
}
