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

// Tick is the tick that a Scheduler enqueued the task for, and the name of the entry. It reads the task's [Origin]: ok is false
// for a task of any other ID; one of yours with an ID of that form is taken for the Scheduler's.
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

// parse reads a spec as asynq's Scheduler does.
func parse(spec string) (cron.Schedule, error) {
	if strings.Contains(spec, "TZ=") && !strings.Contains(spec, " ") { // on which cron panics
		return nil, errors.New("a time zone and nothing behind it")
	}
	schedule, err := cron.ParseStandard(spec)
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		return aligned(every.Delay), err
	}
	return schedule, err
}

// aligned has its ticks at the multiples of a period since 1970. cron's own "@every" counts from when it was started, so
// that each replica would have ticks of its own.
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

// invalid is a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "asynqlock: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
