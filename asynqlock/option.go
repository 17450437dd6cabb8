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

// Option configures the Guard that [New] makes.
type Option interface{ guard(*config) }

const (
	defaultMaxDeferral = 24 * time.Hour
	defaultMaxDelay    = time.Minute
)

// mistakes are those in the arguments of a constructor. Options only record; the constructor judges.
type mistakes []string

func (m *mistakes) refuse(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// err names all of them, in one error.
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

// SchedulerOption configures the Scheduler that [NewScheduler] makes.
type SchedulerOption interface{ scheduler(*schedulerConfig) }

type schedulerConfig struct {
	mistakes
	redis    redis.UniversalClient
	location *time.Location
	lateness *time.Duration // nil: half of the period, at most defaultLateness
	claim    []holdfast.ClaimOption
	traces
	ahead time.Duration // what the clock of this replica is ahead of the true time, in tests
}

// defaultLateness is half of a period where that is less.
const defaultLateness = time.Minute

func schedulerDefaults() schedulerConfig {
	return schedulerConfig{location: time.UTC}
}

type schedulerOption func(*schedulerConfig)

func (o schedulerOption) scheduler(c *schedulerConfig) { o(c) }

// anyOption is for a Guard and for a Scheduler. What makes one returns both interfaces without a name for the two: the compiler
// takes it where either is wanted, and refuses the options of the other.
type anyOption struct {
	option
	schedulerOption
}

// Policy says what becomes of a task whose key is busy: [Defer], [Wait], [Skip] or [Fail]. A task that finds Redis away is
// deferred under each of them, unless [WithFailOpen]. The zero value is Defer().
type Policy struct {
	kind                  kind
	wait                  time.Duration
	maxDeferral, maxDelay *time.Duration // nil: the default
}

// MaxDeferral bounds how long a task is deferred altogether, counted from the first time, and anew when it has failed. It is
// looked at when the task comes back, which may be a delay and 5 s later. After it a busy key is a failure like another, and so
// is a Redis that is away: it is counted, retried by asynq's rules, and archives the task with the last retry. Default:
// 24 h.
func (p Policy) MaxDeferral(d time.Duration) Policy {
	p.maxDeferral = &d
	return p
}

// MaxDelay bounds the delay of one deferral. The delay is what the holder's lease has left and, lest all come back at once, a
// random part more: up to a quarter of that, or up to 1 s if that is more. A delay above d is a random one instead, from three
// quarters of d to d. asynq looks for what is due every 5 s (Config.DelayedTaskCheckInterval). A task that is woken by a
// release does not wait for that. At least 1 s, as asynq counts in seconds. Default: 1 min.
func (p Policy) MaxDelay(d time.Duration) Policy {
	p.maxDelay = &d
	return p
}

// bounds are those of deferrals.
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

// Defer frees the worker at once and has the task come back later. It is not counted as failed, no retry is spent and
// no ErrorHandler called. Meanwhile it is in asynq's state "retry", with a last error that names the holder, since when the
// task is deferred, and what its handler had failed with before, if it had.
//
// The task comes back when what the holder's lease had left is over, and a random part more, bounded by [Policy.MaxDelay];
// where Redis could not be asked, after some 5 s; asynq looks for such tasks every 5 s. Mostly it comes back much sooner: a
// task that ends wakes the one that gave way first, which then is the next that asynq takes from its queue, however many are in
// it. A request or a cron job that had the lock wakes none: where tasks share their keys with those, the sum of [Policy.MaxDelay]
// and asynq's DelayedTaskCheckInterval is for how long a key can be free before a task comes back, say 2 s and 1 s. Where the
// queue is empty otherwise, asynq looks into it every Config.TaskCheckInterval, 1 s by default. Another task may be quicker all
// the same, a new one or one that waits: the woken one waits for up to 100 ms then, and gives way again. Where order matters,
// [Wait] for longer than the tasks in front will take: waiting tasks are served in line, as Wait says.
//
// A task without retries left, with MaxRetry(0) or on its last retry, cannot give way as it is: asynq would archive
// it. A new task takes its place, and the old ID is free meanwhile. The new one has the ID of the first with "~" and a
// random text, which [Origin] resolves, and all the rest: type, payload, headers, queue, retries, timeout, deadline, retention,
// and what a Unique option has locked, for as long as that was to be locked. The old one is dropped without a record; asynq logs
// "revoke task" about it. A worker that is killed between the two leaves both, of which asynq archives the old one. Where the
// new one cannot be stored, as asynq's Redis is away, the old one fails, and is archived.
//
// A Deadline runs on while a task is deferred. Where it would be over before the task came back, a worker waits for the key
// instead, until shortly before. A key that is busy for longer leaves no time to run in: asynq then fails the task by its
// deadline, as it does with one that waited in the queue for too long. A Timeout begins anew each time that a worker takes the
// task.
func Defer() Policy { return Policy{} }

// Wait waits in line for up to max, among the workers of all servers, first come, first served but for
// [holdfast.WithLocalHandover], and then defers. A worker that waits does nothing else: many tasks for one key can occupy all
// of them. Asynq's Timeout runs from when a worker takes the task: give it room for max and the handler. A wait leaves the
// handler 1 s of it at least, or of a Deadline, or a fifth if that is less. Wait(0) does not wait: it is [Defer].
func Wait(max time.Duration) Policy { return Policy{wait: max} }

// Skip completes the task without running it, as another one is at work. asynq shows it as processed; only the hook Skipped of
// [WithTrace] knows better. It is for tasks that need not be done: one that asynq runs again, as its worker died or was shut
// down, may find the lock of its own first run, and is completed all the same.
func Skip() Policy { return Policy{kind: skip} }

// Fail ends the run with an error that matches [holdfast.ErrNotAcquired], as if the handler had failed: it is counted,
// retried by asynq's rules, and archived with the last retry.
func Fail() Policy { return Policy{kind: fail} }

// WithBusy sets what becomes of a task whose key is busy. Default: [Defer].
func WithBusy(p Policy) Option { return option(func(c *config) { c.busy = p }) }

// WithErrorHandler sets decide, which says what asynq sees of a task that the Guard fails, in place of err: nil makes it a
// success, an error a failure by asynq's rules. err matches
//
//   - [holdfast.ErrLost] where the handler returned nil after its lock was lost, so that another run may have been beside it;
//   - [holdfast.ErrNotAcquired] where the key was busy, with [Fail] or beyond [Policy.MaxDeferral];
//   - [holdfast.ErrUnavailable] or [holdfast.ErrClosed] where Redis was away, or the Locker shut down, beyond MaxDeferral;
//   - [holdfast.ErrInvalid] where the task names nothing to lock by.
//
// It is not asked about a mistake in the program: a forgotten [Guard.Config], or an ErrSelfDeadlock. A deferral is no failure,
// and what the handler or a Part of yours returns stays as it is, joined with the loss where there was one: after a
// sqlfence.ErrStale, say, asynq tries the task again, under a new lock with a larger token. Default: err, so that asynq tries a
// task again, or archives one that names nothing.
func WithErrorHandler(decide func(ctx context.Context, t *asynq.Task, err error) error) Option {
	return option(func(c *config) {
		if c.decide = decide; decide == nil {
			c.refuse("WithErrorHandler(nil)")
		}
	})
}

// WithTrace adds hooks, for logs and metrics: of a Guard or of a Scheduler. Default: slog is told of losses, of tasks that
// run without the lock or name nothing to lock by, and of ticks that are missed. A hook that is set replaces that for what it
// hears of.
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

// WithLock passes options on to the acquisition: the TTL, a label, a bound to the hold. They win over those of the
// Locker. A TTL above 30 s, which is how long asynq gives a worker that it no longer hears from, lets the lock of a dead
// worker outlast that. What [holdfast.WithWait] says does not count: see [Wait].
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithLimit lets n tasks at a time run for one key, on all servers together. It is WithLock(holdfast.WithLimit(n)), see
// [holdfast.WithLimit]: one more task finds the key busy, as [WithBusy] says, and a task that ends wakes one that gave way. A
// request or a cron job that locks the same key without a limit runs alone. It does not fence: a write that sqlfence guards
// needs a lock without a limit, or fails with ErrNoToken. From 1, which is a lock without a limit whatever the Locker has, to
// 1000. Default: the limit of the Locker, if it has one.
func WithLimit(n int) Option { return WithLock(holdfast.WithLimit(n)) }

// WithAlso adds a lock: a task then runs under that of [New] and those of all WithAlso, taken together as [holdfast.Locker.DoAll]
// does it, so that tasks that name the same things in any order never wait for each other in a circle. A transfer:
//
//	asynqlock.New(locker, "account", asynqlock.Field("from"), asynqlock.WithAlso("account", asynqlock.Field("to")))
//
// All other options count for each of the locks, and [Wait] for all of them together. A task gives way at the first key that is
// busy, which its error names, and is woken when that is free; if it then finds another key busy, it gives way there, and wakes
// the next task for the first key. A run that ends wakes a task at each of its keys. A task that was refused may have held a
// free key for an instant. It then wakes a task that it kept out of that key; if it cannot, that task comes back after its
// delay. Two parts may name the same lock. There may be 63 WithAlso.
//
// Under an outer Guard that has some of the locks, a task goes on under those and takes the others as it would without. With
// [Wait] that can make a circle with such tasks of another order, which ends with the wait. A task that has a lock [WithLimit]
// there, and wants it alone here, fails each time, with [holdfast.ErrSelfDeadlock]: do not nest Guards like that.
func WithAlso(resource string, part Part) Option {
	return option(func(c *config) {
		t := target{resource, part}
		t.judge(&c.mistakes, fmt.Sprintf("WithAlso(%q): ", resource))
		c.also = append(c.also, t)
	})
}

// WithRedis names the Redis that asynq has. It is for a Guard and for a Scheduler. Default: the Locker's.
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

// WithFailOpen runs tasks without a lock while the Locker's Redis is unavailable. It gives up the lock exactly when
// the system is in trouble: sqlfence fails with ErrNoToken then, and gormfence lets writes pass unless it has
// WithLockRequired. Default: such tasks are deferred.
func WithFailOpen() Option { return option(func(c *config) { c.failOpen = true }) }

// WithLocation sets the time zone of a Scheduler's specs. It has to be the same on all replicas. An hour that summer time
// leaves out has no ticks, and the ticks of an hour that comes twice come twice. Default: UTC.
func WithLocation(l *time.Location) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) {
		if c.location = l; l == nil {
			c.refuse("WithLocation(nil)")
		}
	})
}

// WithLateness bounds how long after a tick its task may still be enqueued, when Redis did not answer before or the machine
// was suspended. A tick that is later is missed on this replica. The replica's own clock tells how late it is, and what a clock
// that is ahead waits for its tick does not count. A bound above an hour needs a wider window of [WithClaim] too. Default: half
// of the period, at most 1 min.
func WithLateness(d time.Duration) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.lateness = &d })
}

// WithClaim passes options on to [holdfast.Locker.Claim], which decides the replica that enqueues a tick. They win over the
// Locker's. What [holdfast.WithWait] says does not count: see [WithLateness].
//
// [holdfast.WithTickWindow] sets by how much the clocks of replicas may differ. A replica whose clock is ahead enqueues
// nothing before the tick has come by the clock of Redis all the same.
func WithClaim(opts ...holdfast.ClaimOption) SchedulerOption {
	return schedulerOption(func(c *schedulerConfig) { c.claim = append(c.claim, opts...) })
}
