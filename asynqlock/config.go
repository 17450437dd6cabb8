package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// configured is a key in the base context of a server whose Config went through Guard.Config.
type configured struct{}

var errNotConfigured error = &configError{}

type configError struct{}

func (*configError) Error() string {
	return "asynqlock: the server's asynq.Config did not go through Guard.Config: tasks that give way would spend retries and be archived"
}

func (*configError) Is(target error) bool { return target == holdfast.ErrInvalid }

// Config returns cfg, prepared for deferrals, for the asynq server whose handlers g wraps. If the server has handlers of
// several Guards, pass its cfg through the Config of one of them. All that cfg says stays in force, except for deferrals.
// They are not failures: cfg's IsFailure, RetryDelayFunc and ErrorHandler are not called for them.
//
// Without Config, every task that a Guard wraps fails with an error that says so.
func (g *Guard) Config(cfg asynq.Config) asynq.Config {
	base := cfg.BaseContext
	if base == nil {
		base = context.Background
	}
	cfg.BaseContext = func() context.Context { return context.WithValue(base(), configured{}, true) }

	isFailure := cfg.IsFailure
	if isFailure == nil {
		isFailure = func(err error) bool { return err != nil }
	}
	cfg.IsFailure = func(err error) bool { return deferral(err) == nil && isFailure(err) }

	delay := cfg.RetryDelayFunc
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if d := deferral(err); d != nil {
			return d.Delay
		}
		return delay(n, err, t)
	}

	if handler := cfg.ErrorHandler; handler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if deferral(err) == nil {
				handler.HandleError(ctx, t, err)
			}
		})
	}
	return cfg
}

// DeferredError is the error of a task that is deferred. A middleware in front of the Guard that wraps errors must do so
// with %w, or the deferral becomes a failure. It matches the error of the acquisition: [holdfast.ErrNotAcquired],
// [holdfast.ErrUnavailable] or [holdfast.ErrClosed]. It also matches [asynq.RevokeTask] if a new task has taken this one's
// place, so that asynq drops this one without a record.
type DeferredError struct {
	Key      string
	Since    time.Time     // of the first deferral
	Delay    time.Duration // until it comes back
	cause    error
	failure  string // the handler's last error before, if any
	replaced bool
}

// Error returns the text that asynq shows as the task's last error. It includes what the handler failed with before, if it
// did.
func (e *DeferredError) Error() string {
	text := fmt.Sprintf("asynqlock: deferred since %s, now by %v: %v", e.Since.UTC().Format(time.RFC3339), e.Delay.Round(time.Millisecond), e.cause)
	if e.failure != "" {
		text += "; its handler failed before: " + e.failure
	}
	return strings.ToValidUTF8(text, "?") // asynq cannot store anything else
}

func (e *DeferredError) Unwrap() error { return e.cause }

func (e *DeferredError) Is(target error) bool { return e.replaced && target == asynq.RevokeTask }

func deferral(err error) *DeferredError {
	var d *DeferredError
	if errors.As(err, &d) {
		return d
	}
	return nil
}
