package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/robfig/cron/v3"
)

// Tick returns the tick that a Scheduler enqueued the task for, and the name of the entry. It reads the task's [Origin]. ok
// is false if that does not have the form of a Scheduler's ID. Tick takes any ID of that form for a Scheduler's, even one
// that you have set.
func Tick(ctx context.Context, t *asynq.Task) (name string, tick time.Time, ok bool) {
	id := Origin(ctx, t)
	i := strings.LastIndexByte(id, '@')
	if i <= 0 {
		return "", time.Time{}, false
	}
	seconds, err := strconv.ParseInt(id[i+1:], 10, 64)
	if err != nil || seconds <= 0 || strconv.FormatInt(seconds, 10) != id[i+1:] { // "+5" and "05" are numbers too
		return "", time.Time{}, false
	}
	return id[:i], time.Unix(seconds, 0), true
}

// parse reads a spec like asynq's Scheduler.
func parse(spec string) (cron.Schedule, error) {
	if strings.Contains(spec, "TZ=") && !strings.Contains(spec, " ") { // cron panics on it
		return nil, errors.New("a time zone without a spec")
	}
	schedule, err := cron.ParseStandard(spec)
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		return aligned(every.Delay), err
	}
	return schedule, err
}

// aligned is a schedule whose ticks are at the multiples of a period since 1970. cron's own "@every" counts from its start,
// so that each replica would have different ticks.
type aligned time.Duration

func (a aligned) Next(now time.Time) time.Time {
	period := int64(time.Duration(a) / time.Second)
	return time.Unix((now.Unix()/period+1)*period, 0).In(now.Location())
}

// skewed is the schedule of a replica whose clock is ahead.
type skewed struct {
	cron.Schedule
	ahead time.Duration
}

func (s skewed) Next(now time.Time) time.Time { return s.Schedule.Next(now.Add(s.ahead)).Add(-s.ahead) }

// invalid returns a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "asynqlock: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
