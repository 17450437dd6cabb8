package asynqlock

import (
	"context"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/redis/go-redis/v9"
)

// An Option configures the Guard that [New] makes.
type Option interface{ guard(*config) }

const (
	defaultMaxDeferral = 24 * time.Hour
	defaultMaxDelay    = time.Hour
)

type config struct {
	mistakes    wiring.Mistakes
	targets     []target // New's, and those of WithAlso
	lock        []holdfast.CallOption
	share       *wiring.Share[*asynq.Task] // nil without WithShare
	redis       redis.UniversalClient
	busy        Policy
	maxDeferral time.Duration // as the policy says
	maxDelay    time.Duration
	handle      func(context.Context, *asynq.Task, error) error // of WithErrorHandler, or nil
	traces
	failOpen bool
	ordered  bool
}

// decide returns what asynq sees when the Guard fails a task with err.
func (c *config) decide(ctx context.Context, t *asynq.Task, err error) error {
	if c.handle == nil {
		return err
	}
	return c.handle(ctx, t, err)
}

type option func(*config)

func (o option) guard(c *config) { o(c) }

// A SchedulerOption configures the Scheduler that [NewScheduler] makes.
type SchedulerOption interface{ scheduler(*schedulerConfig) }

type schedulerConfig struct {
	mistakes wiring.Mistakes
	redis    redis.UniversalClient
	location *time.Location
	lateness *time.Duration // nil: half of the period, at most defaultLateness
	claim    []tick.Option
	traces
	ahead     time.Duration // how far the clock of this replica is ahead of the true time, in tests
	listEvery time.Duration // how often the entries are listed for the Inspector
}

// defaultLateness applies unless half of the period is less.
const defaultLateness = time.Minute

func schedulerDefaults() schedulerConfig {
	return schedulerConfig{location: time.UTC, listEvery: listEvery}
}

type schedulerOption func(*schedulerConfig)

func (o schedulerOption) scheduler(c *schedulerConfig) { o(c) }

// anyOption is for a Guard and for a Scheduler. Functions that make one return both interfaces, without a name for the
// pair. So the compiler takes it as either kind of option, and still refuses the options of the other kind.
type anyOption struct {
	option
	schedulerOption
}

// Policy says what happens to a task whose key is busy. Under each, a task is deferred while Redis is unavailable. The zero
// value is Defer().
type Policy struct {
	kind                  kind
	wait                  time.Duration
	maxDeferral, maxDelay *time.Duration // nil: the default
}

// MaxDeferral bounds for how long a task is deferred without a failure in between, give or take a few seconds. After
// that, a busy key or a Redis that is unavailable is a failure as with [Fail]. Default: 24 h.
func (p Policy) MaxDeferral(d time.Duration) Policy {
	p.maxDeferral = &d
	return p
}

// MaxDelay bounds after how long a deferred task comes back by itself, if nothing wakes it: the first in line after 1, 2,
// 4 s and so on, or when the holder's lease has ended; those behind it after a minute or more, ever more rarely. With a
// short d long lines come back again and again for nothing. d is at least 1 s. Default: 1 h.
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

// Defer frees the worker and has the task come back later, for up to [Policy.MaxDeferral]. Meanwhile the task is in asynq's
// state "retry".
//
// First the task may wait in its worker for up to 200 ms, to start at once behind a short request or task. At most a
// third of the server's workers wait like that, or one.
//
// A task that ends wakes the one that was deferred first for its key, or by [WithShare], in one of the queues by lot that
// are not paused, and asynq takes that one next. A request or a cron job wakes no task: behind one that took a second, the
// first task comes back within 2 s.
//
// A task without retries left is archived by asynq each time, and the Guard brings it back at once. asynq logs "Retry
// exhausted" and counts a task processed and failed. If the process is killed in between, the task stays archived until the
// next one for its key ends. If asynq's Redis is unavailable, it fails and stays so.
//
// A Deadline keeps running: the task comes back 5 s before it, and fails if it passes. A Timeout starts anew with each run.
func Defer() Policy { return Policy{} }

// Wait has the worker wait for the key for up to max, and then defers the task. Many tasks for one key can thus occupy all
// workers. The wait leaves the handler a fifth of its Timeout or Deadline, at most 1 s. Wait(0) is [Defer].
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// Skip completes the task without running it; only the hook Skipped of a [Trace] shows that. Use it for tasks that need
// not be done: one that asynq runs again, after its worker died or was shut down, can meet the lock of its own first run.
func Skip() Policy { return Policy{kind: skip} }

// Fail ends the run with an error that matches [holdfast.ErrNotAcquired], as if the handler had failed: it spends a retry.
func Fail() Policy { return Policy{kind: fail} }

// WithBusy sets what happens to a task whose key is busy. Default: [Defer].
func WithBusy(p Policy) Option { return option(func(c *config) { c.busy = p }) }

// WithErrorHandler sets decide, which decides what asynq sees if the Guard fails a task with one of the errors of
// holdfast in the package's description. With nil the task is a success. Default: err. With [holdfast.ErrLost], the
// handler has returned nil, but another run may have overlapped with it. decide is not called for a mistake in the
// program: a forgotten [Guard.Config], or an ErrSelfDeadlock.
func WithErrorHandler(decide func(ctx context.Context, t *asynq.Task, err error) error) Option {
	return option(func(c *config) {
		if c.handle = decide; decide == nil {
			c.mistakes.Refuse("WithErrorHandler(nil)")
		}
	})
}

// WithTrace adds hooks, for logs and metrics. Default: slog logs lost locks, tasks that run without the lock or have no
// key, and missed ticks. A hook replaces the logging of what it reports.
func WithTrace(t *Trace) interface {
	Option
	SchedulerOption
} {
	record := func(m *wiring.Mistakes, ts *traces) {
		if *ts = append(*ts, t); t == nil {
			m.Refuse("WithTrace(nil)")
		}
	}
	return anyOption{
		func(c *config) { record(&c.mistakes, &c.traces) },
		func(c *schedulerConfig) { record(&c.mistakes, &c.traces) },
	}
}

// WithLock passes options to the acquisition of the lock, such as its TTL or a label. They override the Locker's.
// [holdfast.WithWait] has no effect here: see [Wait].
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithLimit lets n tasks run at a time for one key, on all servers together. It is WithLock([holdfast.WithLimit](n)).
// Such a lock does not fence: a write that sqlfence guards needs another one, or fails with ErrNoToken.
func WithLimit(n int) Option { return WithLock(holdfast.WithLimit(n)) }

// WithAlso adds a lock. A task runs under the lock of [New] and those of up to 63 WithAlso, taken together as by
// [holdfast.Locker.DoAll], without deadlocks whatever their order. A transfer:
//
//	asynqlock.New(locker, "account", asynqlock.Field("from"), asynqlock.WithAlso("account", asynqlock.Field("to")))
//
// opts are for this lock alone, such as holdfast.WithLimit(20). Where two parts name one key, the smaller limit
// counts. The other options apply to each lock, and [Wait] to all together. With Wait, tasks under outer Guards can
// wait for each other in a circle until it ends.
func WithAlso(resource string, part Part, opts ...holdfast.CallOption) Option {
	opts = slices.Clone(opts)
	return option(func(c *config) { c.targets = append(c.targets, target{Resource: resource, Part: part, Own: opts}) })
}

// WithShare has tasks for a key take turns by the value of part, such as Field("tenant"), with equal parts of the wakes and
// grants: see [holdfast.WithShare]. A task without it has no name. Take it from the authenticated tenant. With [Wait], tasks of
// one name can occupy all workers. Wakes do not count holdfast.WithShareWeight.
func WithShare(part Part) Option {
	return option(func(c *config) { c.share = &wiring.Share[*asynq.Task]{Part: part} })
}

// WithOrder has the tasks of a key, queue by queue, run one at a time in the order in which [Guard.Enqueue] enqueued them,
// also over retries and kills. Every Guard of the key needs it. It goes with [Defer] only, and without WithAlso, WithShare and
// WithFailOpen.
//
// A task that is to be retried keeps the next ones waiting, until their MaxDeferral, or up to 30 s after it is deleted or
// archived.
func WithOrder() Option { return option(func(c *config) { c.ordered = true }) }

// WithRedis sets the Redis that asynq uses. Default: the Locker's.
func WithRedis(client redis.UniversalClient) interface {
	Option
	SchedulerOption
} {
	record := func(m *wiring.Mistakes, redis *redis.UniversalClient) {
		if *redis = client; isNil(client) {
			m.Refuse("WithRedis(nil)")
		}
	}
	return anyOption{
		func(c *config) { record(&c.mistakes, &c.redis) },
		func(c *schedulerConfig) { record(&c.mistakes, &c.redis) },
	}
}

// WithFailOpen runs tasks without the lock while the Locker's Redis is unavailable. It gives up mutual exclusion exactly
// when the system is in trouble: sqlfence then fails with ErrNoToken, and gormfence lets writes pass unless it has
// WithLockRequired. Default: such tasks are deferred.
func WithFailOpen() Option { return option(func(c *config) { c.failOpen = true }) }

// WithLocation sets the time zone of a Scheduler's specs, the same on all replicas. An hour that daylight saving time skips
// has no ticks; one that it repeats has them twice. Default: UTC.
func WithLocation(l *time.Location) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) {
		if c.location = l; l == nil {
			c.mistakes.Refuse("WithLocation(nil)")
		}
	})
}

// WithLateness bounds how long after a tick, by the replica's own clock, its task may still be enqueued, for example
// because Redis did not answer or the machine was suspended. A bound above an hour needs a wider window too, see
// [WithClaim]. Default: half of the period, at most 1 min.
func WithLateness(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.lateness = &d })
}

// WithClaim passes options to the claims of ticks, such as [tick.WithWindow], which sets by how much the clocks of
// replicas may differ from that of Redis.
func WithClaim(opts ...tick.Option) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.claim = append(c.claim, opts...) })
}
