package asynqlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// An Option configures the Guard that [New] makes. It only records its argument; New checks it.
type Option interface{ guard(*config) }

const (
	defaultMaxDeferral = 24 * time.Hour
	defaultMaxDelay    = time.Minute
)

// mistakes are the mistakes in the arguments of a constructor. Options only record them; the constructor panics with all of
// them.
type mistakes []string

func (m *mistakes) refuse(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// err returns one error that names all mistakes, or nil if there are none.
func (m mistakes) err(act string) error {
	if len(m) == 0 {
		return nil
	}
	return invalid("%s: %s", act, strings.Join(m, "; "))
}

type config struct {
	mistakes
	lock        []holdfast.CallOption
	also        []target
	redis       redis.UniversalClient
	busy        Policy
	maxDeferral time.Duration // as the policy says
	maxDelay    time.Duration
	decide      func(context.Context, *asynq.Task, error) error
	traces
	failOpen bool
}

func defaults() config {
	return config{
		decide: func(_ context.Context, _ *asynq.Task, err error) error { return err },
	}
}

type option func(*config)

func (o option) guard(c *config) { o(c) }

// A SchedulerOption configures the Scheduler that [NewScheduler] makes. It only records its argument; NewScheduler checks
// it.
type SchedulerOption interface{ scheduler(*schedulerConfig) }

type schedulerConfig struct {
	mistakes
	redis    redis.UniversalClient
	location *time.Location
	lateness *time.Duration // nil: half of the period, at most defaultLateness
	claim    []holdfast.ClaimOption
	traces
	ahead time.Duration // how far the clock of this replica is ahead of the true time, in tests
}

// defaultLateness applies unless half of the period is less.
const defaultLateness = time.Minute

func schedulerDefaults() schedulerConfig {
	return schedulerConfig{location: time.UTC}
}

type schedulerOption func(*schedulerConfig)

func (o schedulerOption) scheduler(c *schedulerConfig) { o(c) }

// anyOption is for a Guard and for a Scheduler. Functions that make one return both interfaces, without a name for the
// pair. So the compiler takes it as either kind of option, and still refuses the options of the other kind.
type anyOption struct {
	option
	schedulerOption
}

// Policy says what happens to a task whose key is busy: [Defer], [Wait], [Skip] or [Fail]. Under each of them a task is
// deferred while Redis is unavailable, unless [WithFailOpen] is set. The zero value is Defer().
type Policy struct {
	kind                  kind
	wait                  time.Duration
	maxDeferral, maxDelay *time.Duration // nil: the default
}

// MaxDeferral bounds how long a task is deferred without a failure in between, counted from its first deferral. It is checked
// when the task comes back, so a task can exceed it by a delay and 5 s. Beyond the bound a busy key, or a Redis that is
// unavailable, is a failure as with [Fail] and spends a retry. Like every failure of the task it starts the count anew, so the
// retry can be deferred for up to d again. d must be positive. Default: 24 h.
func (p Policy) MaxDeferral(d time.Duration) Policy {
	p.maxDeferral = &d
	return p
}

// MaxDelay bounds the delay of one deferral. The delay is what is left of the holder's lease plus a random part, so that
// tasks do not all come back at once: up to a quarter of what is left, or up to 1 s if that is more. If the sum exceeds d,
// the delay is random instead, from three quarters of d to d. asynq looks for tasks that are due every 5 s
// (Config.DelayedTaskCheckInterval). A task that is woken by a release does not wait for that. d is at least 1 s, because
// asynq counts in seconds. Default: 1 min.
func (p Policy) MaxDelay(d time.Duration) Policy {
	p.maxDelay = &d
	return p
}

// bounds returns the two bounds of deferrals.
func (p Policy) bounds() (maxDeferral, maxDelay time.Duration) {
	maxDeferral, maxDelay = defaultMaxDeferral, defaultMaxDelay
	if p.maxDeferral != nil {
		maxDeferral = *p.maxDeferral
	}
	if p.maxDelay != nil {
		maxDelay = *p.maxDelay
	}
	return maxDeferral, maxDelay
}

type kind uint8

const (
	deferred kind = iota
	skip
	fail
)

// Defer frees the worker at once and has the task come back later. That is not a failure: it spends no retry, and asynq
// does not call ErrorHandler. Meanwhile the task is in asynq's state "retry". Its last error names the holder and the time
// of the first deferral, and includes the last error of the task's handler, if there was one.
//
// Usually a deferred task is woken: a task that ends wakes the one that was deferred first for its key. asynq takes the
// woken task next from its queue, however many are in it. A task that is not woken comes back after a delay, see
// [Policy.MaxDelay], or after about 5 s if Redis was unavailable.
//
// A task can still start later than its key is free, or after another task:
//
//   - A request or a cron job that held the lock wakes no task. The key can then be free for as long as the sum of
//     [Policy.MaxDelay] and asynq's DelayedTaskCheckInterval before a task comes back. If tasks share keys with requests or
//     cron jobs, make both short, for example 2 s and 1 s.
//   - If the queue is otherwise empty, asynq looks into it only every Config.TaskCheckInterval, 1 s by default.
//   - A new or a waiting task can take the lock first. The woken task then waits for up to 100 ms before it is deferred
//     again. If order matters, use [Wait] with a bound longer than the tasks in front take.
//
// A task without retries left (with MaxRetry(0), or on its last retry) cannot be deferred as it is: asynq would archive it.
// A new task takes its place, and the old ID is free meanwhile. The new ID is that of the first task with "~" and a random
// text appended; [Origin] returns the ID of the first. Everything else stays: type, payload, headers, queue, MaxRetry and
// the count of retries spent, timeout, deadline, retention, and the lock of a Unique option for as long as it was to last.
// asynq then drops the old task without a record, and logs "revoke task". If the worker is killed between the two steps,
// both tasks remain, and asynq archives the old one. If the new task cannot be stored because asynq's Redis is unavailable,
// the old one fails and is archived.
//
// A Deadline keeps running while a task is deferred. If it would pass before the task comes back, a worker waits for the
// key instead, until shortly before the Deadline. If the key is still busy then, asynq fails the task by its Deadline, like
// one that was in the queue for too long. A Timeout starts anew each time a worker takes the task.
func Defer() Policy { return Policy{} }

// Wait has the worker wait for the key for up to max, and then defers the task. The workers of all servers wait in one
// line: first come, first served, except for [holdfast.WithLocalHandover]. A worker that waits does nothing else, so many
// tasks for one key can occupy all workers. asynq's Timeout starts when a worker takes the task: leave room in it for max
// and the handler. A wait ends early enough to leave the handler at least 1 s of its Timeout or Deadline, or a fifth of
// what was left if that is less. Wait(0) does not wait: it is [Defer].
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// Skip completes the task without running it, because another one is at work. asynq shows the task as processed; only the
// hook Skipped of a [Trace] reports the difference. Use it for tasks that need not be done. A task that asynq runs again,
// because its worker died or was shut down, can find the lock of its own first run, and is then completed too.
func Skip() Policy { return Policy{kind: skip} }

// Fail ends the run with an error that matches [holdfast.ErrNotAcquired], as if the handler had failed. asynq counts the
// failure, retries the task by its own rules, and archives it with the last retry.
func Fail() Policy { return Policy{kind: fail} }

// WithBusy sets what happens to a task whose key is busy. Default: [Defer].
func WithBusy(p Policy) Option { return option(func(c *config) { c.busy = p }) }

// WithErrorHandler sets decide, which decides what asynq sees if the Guard fails a task with err. If it returns nil, the
// task is a success. If it returns an error, that is a failure by asynq's rules. Default: err, so that asynq retries the
// task, or archives one without a key. err matches
//
//   - [holdfast.ErrLost] if the handler returned nil after its lock was lost, so that another run may have overlapped with
//     it
//   - [holdfast.ErrNotAcquired] if the key was busy, with [Fail] or after [Policy.MaxDeferral]
//   - [holdfast.ErrUnavailable] or [holdfast.ErrClosed] if Redis was unavailable, or the Locker shut down, after
//     MaxDeferral
//   - [holdfast.ErrInvalid] if the task has no key
//
// decide is not called for a mistake in the program: a forgotten [Guard.Config], or an ErrSelfDeadlock. Nor is it called
// for a deferral, which is not a failure. An error of the handler or of your own Part stays as it is, joined with the loss
// if there was one. After a sqlfence.ErrStale, for example, asynq retries the task, under a new lock with a larger token.
func WithErrorHandler(decide func(ctx context.Context, t *asynq.Task, err error) error) Option {
	return option(func(c *config) {
		if c.decide = decide; decide == nil {
			c.refuse("WithErrorHandler(nil)")
		}
	})
}

// WithTrace adds hooks, for logs and metrics, to a Guard or a Scheduler. Default: slog logs lost locks, tasks that run
// without the lock or have no key, and missed ticks. Setting a hook replaces the default logging of what that hook reports.
func WithTrace(t *Trace) interface {
	Option
	SchedulerOption
} {
	record := func(m *mistakes, ts *traces) {
		if *ts = append(*ts, t); t == nil {
			m.refuse("WithTrace(nil)")
		}
	}
	return anyOption{
		func(c *config) { record(&c.mistakes, &c.traces) },
		func(c *schedulerConfig) { record(&c.mistakes, &c.traces) },
	}
}

// WithLock passes options to the acquisition of the lock, such as its TTL, a label or a bound on the hold. They override
// the Locker's. [holdfast.WithWait] has no effect here: see [Wait]. A TTL above 30 s lets the lock of a dead worker outlast
// the 30 s after which asynq considers the worker dead.
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithLimit lets n tasks run at a time for one key, on all servers together. It is WithLock(holdfast.WithLimit(n)), see
// [holdfast.WithLimit]. One more task finds the key busy, see [WithBusy], and a task that ends wakes a deferred one. A
// request or a cron job that locks the same key without a limit runs alone. A lock with a limit does not fence: a write
// that sqlfence guards needs a lock without a limit, or fails with ErrNoToken. n is from 1 to 1000. 1 is a lock without a
// limit, even if the Locker has one. Default: the Locker's limit, if it has one.
func WithLimit(n int) Option { return WithLock(holdfast.WithLimit(n)) }

// WithAlso adds a lock. A task then runs under the lock of [New] and those of all WithAlso. They are taken together, as by
// [holdfast.Locker.DoAll]: tasks that name the same things never wait for each other in a circle, whatever their order. A
// transfer:
//
//	asynqlock.New(locker, "account", asynqlock.Field("from"), asynqlock.WithAlso("account", asynqlock.Field("to")))
//
// All other options apply to each of the locks, and [Wait] to all of them together. Two parts may name the same lock. A
// Guard can have up to 63 WithAlso options.
//
// A task is deferred at the first busy key, which its error names, and is woken when that key is free. If the task then
// finds another key busy, it is deferred there, and wakes the next task for the first key. A run that ends wakes a task at
// each of its keys. A task that finds a key busy may have held a free key for an instant. It then wakes a task that it kept
// out of that key. If it cannot, that other task comes back after its delay.
//
// Under an outer Guard that holds some of the locks, a task keeps those and takes the others as usual. With [Wait], tasks
// that nest their locks in different orders can then wait for each other in a circle, until a wait ends. If such an outer
// lock allows more holders than this Guard does, the task fails each time, with [holdfast.ErrSelfDeadlock]: do not nest
// Guards like that.
func WithAlso(resource string, part Part) Option {
	return option(func(c *config) {
		t := target{resource, part}
		t.judge(&c.mistakes, fmt.Sprintf("WithAlso(%q): ", resource))
		c.also = append(c.also, t)
	})
}

// WithRedis sets the Redis that asynq uses, for a Guard or a Scheduler. Default: the Locker's.
func WithRedis(client redis.UniversalClient) interface {
	Option
	SchedulerOption
} {
	record := func(m *mistakes, redis *redis.UniversalClient) {
		if *redis = client; isNil(client) {
			m.refuse("WithRedis(nil)")
		}
	}
	return anyOption{
		func(c *config) { record(&c.mistakes, &c.redis) },
		func(c *schedulerConfig) { record(&c.mistakes, &c.redis) },
	}
}

// WithFailOpen runs tasks without the lock while the Locker's Redis is unavailable. It gives up mutual exclusion exactly
// when the system is in trouble. In such a run [holdfast.Held] does not find the lock, sqlfence fails with ErrNoToken, and
// gormfence lets writes pass unless it has WithLockRequired. Default: such tasks are deferred.
func WithFailOpen() Option { return option(func(c *config) { c.failOpen = true }) }

// WithLocation sets the time zone of a Scheduler's specs. It must be the same on all replicas. An hour that daylight saving
// time skips has no ticks. The ticks of an hour that it repeats come twice. Default: UTC.
func WithLocation(l *time.Location) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) {
		if c.location = l; l == nil {
			c.refuse("WithLocation(nil)")
		}
	})
}

// WithLateness bounds how long after a tick its task may still be enqueued, for example because Redis did not answer or the
// machine was suspended. After that the tick is missed on this replica. The replica's own clock measures this. The time
// that a replica whose clock is ahead waits for its tick does not count. A bound above an hour needs a wider window too,
// see [WithClaim]. d must be positive. Default: half of the period, at most 1 min.
func WithLateness(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.lateness = &d })
}

// WithClaim passes options to [holdfast.Locker.Claim], which decides which replica enqueues a tick. They override the
// Locker's. [holdfast.WithWait] has no effect here: see [WithLateness].
//
// [holdfast.WithTickWindow] sets by how much the clocks of replicas may differ from that of Redis. Even in a wider window,
// a replica whose clock is ahead enqueues nothing before the tick has come by the clock of Redis.
func WithClaim(opts ...holdfast.ClaimOption) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.claim = append(c.claim, opts...) })
}
