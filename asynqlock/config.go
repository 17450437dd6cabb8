package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// configured is a key in the base context of a server whose Config went through Guard.Config. Its value is a *server.
type configured struct{}

// serverOf returns the server whose Config went through Guard.Config, or nil.
func serverOf(ctx context.Context) *server {
	s, _ := ctx.Value(configured{}).(*server)
	return s
}

// server counts the tasks of an asynq server that wait for a key in their workers. They are at most a third of its workers,
// so that others are left for tasks that can run, and among them for the one before.
type server struct {
	most int

	mu      sync.Mutex
	waiting map[string]int // by lock
	all     int
}

// enter reports whether one more task may wait for lock. One that was not woken is the only one to wait for it, but then
// also on a server of few workers: the next ones are deferred behind it.
func (s *server) enter(lock string, woken bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if woken && s.all >= s.most || !woken && (s.waiting[lock] > 0 || s.all >= max(s.most, 1)) {
		return false
	}
	s.waiting[lock]++
	s.all++
	return true
}

func (s *server) leave(lock string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all--; s.waiting[lock] == 1 {
		delete(s.waiting, lock)
	} else {
		s.waiting[lock]--
	}
}

// room reports whether a task that is woken now may wait.
func (s *server) room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all < s.most
}

var errNotConfigured error = &configError{}

type configError struct{}

func (*configError) Error() string {
	return "asynqlock: the server's asynq.Config did not go through Guard.Config: tasks that give way would spend retries and be archived"
}

func (*configError) Is(target error) bool { return target == holdfast.ErrInvalid }

// Config returns cfg, prepared for deferrals, for the asynq server whose handlers g, and perhaps other Guards, wrap.
// Without it, every such task fails. cfg's IsFailure, RetryDelayFunc and ErrorHandler are not called for deferrals.
//
// Where cfg leaves them zero, Config sets TaskCheckInterval to 20 ms and DelayedTaskCheckInterval to 1 s. With asynq's
// own 1 s and 5 s, a key is idle for that long between two of its tasks. An idle server then sends Redis about 50
// commands a second, for each queue.
func (g *Guard) Config(cfg asynq.Config) asynq.Config {
	if cfg.TaskCheckInterval <= 0 {
		cfg.TaskCheckInterval = 20 * time.Millisecond
	}
	if cfg.DelayedTaskCheckInterval == 0 {
		cfg.DelayedTaskCheckInterval = time.Second
	}
	workers := cfg.Concurrency
	if workers < 1 {
		workers = runtime.NumCPU() // as asynq does
	}
	s := &server{most: workers / 3, waiting: map[string]int{}}
	base := cfg.BaseContext
	if base == nil {
		base = context.Background
	}
	cfg.BaseContext = func() context.Context { return context.WithValue(base(), configured{}, s) }

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

// DeferredError is the error of a task that is deferred. It matches [holdfast.ErrNotAcquired], [holdfast.ErrUnavailable] or
// [holdfast.ErrClosed].
type DeferredError struct {
	Key     string
	Since   time.Time     // of the first deferral
	Delay   time.Duration // until it comes back, if it is not woken
	cause   error
	failure string // the handler's last error before, if any
}

// Error returns what asynq shows as the task's last error: the holder, the time of the first deferral, and what the handler
// failed with before.
func (e *DeferredError) Error() string {
	text := fmt.Sprintf("asynqlock: deferred since %s, now by %v: %v", e.Since.UTC().Format(time.RFC3339), e.Delay.Round(time.Millisecond), e.cause)
	if e.failure != "" {
		text += "; its handler failed before: " + e.failure
	}
	return strings.ToValidUTF8(text, "?") // asynq cannot store anything else
}

func (e *DeferredError) Unwrap() error { return e.cause }

func deferral(err error) *DeferredError {
	var d *DeferredError
	if errors.As(err, &d) {
		return d
	}
	return nil
}
