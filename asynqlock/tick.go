package asynqlock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/robfig/cron/v3"
)

// Tick returns the tick that a Scheduler enqueued the task for, and the name of the entry. It takes any task ID of the form
// "name@seconds" for a Scheduler's.
func Tick(ctx context.Context, _ *asynq.Task) (name string, tick time.Time, ok bool) {
	id, _ := asynq.GetTaskID(ctx)
	return tickOf(id)
}

func tickOf(id string) (name string, tick time.Time, ok bool) {
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
		return ticks.Every(every.Delay), err
	}
	return schedule, err
}

// invalid returns a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error { return wiring.Invalid("asynqlock: "+format, args...) }
