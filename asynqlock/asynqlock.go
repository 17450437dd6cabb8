package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

const (
	// longestKey is the length of the longest key that holdfast.Key makes.
	longestKey = 256

	// mostLocks is how many locks DoAll takes.
	mostLocks = 64
)

// Guard runs tasks that name the same thing one at a time. It is safe for concurrent use. Make it with [New].
//
// A Guard does not replace asynq's Unique, and Unique does not replace a Guard:
//
//   - Unique is about enqueueing. While a task is in the queue, Unique keeps out others of the same type and payload. It
//     expires, and it says nothing about runs: after a timeout, one task can run several times at once.
//   - A Guard is about running. Tasks of any type and payload that name the same thing all run, one after the other.
//
// Use both if a second request adds nothing. Unique then drops what need not run twice, and the Guard keeps apart what must
// not run together.
//
// In addition to the lock's keys, which package holdfast describes, a Guard's scripts use these, in asynq's Redis:
//
//	asynqlock:deferred:<key of the lock>  deferred tasks, a sorted set    ZADD ZREM ZPOPMIN PTTL PEXPIRE
//	asynq:{<queue>}:t:<id>                asynq's hash of a task          EXISTS HGET HMGET HSET HDEL
//	asynq:{<queue>}:pending               asynq's list                    LPOS LREM RPUSH
//	asynq:{<queue>}:retry                 asynq's sorted set              ZADD ZREM
//	the key that Unique has locked        asynq's string                  GET SET
//
// The first expires with the last delay. A deferred task has more fields in asynq's hash: "holdfast", and some that begin
// with "holdfast:". They are deleted with the hash. If an ACL denies these commands, deferred tasks are not woken, and come
// back after their delay. Without those on asynq's hash, its retry set and Unique's key, a task without retries left cannot
// be deferred: see [Defer].
type Guard struct {
	locker *holdfast.Locker
	target
	config
}

// New returns a Guard whose tasks run under the lock holdfast.Key(resource, parts...), where part takes the parts from the
// task. Whatever else locks the same key in the same Redis is excluded too: another type of task, a request, a cron job.
//
// The Guard looks up deferred tasks in asynq's Redis, and enqueues a new task there if asynq would archive a deferred one.
// If asynq does not use the Locker's Redis, pass asynq's to [WithRedis].
//
// New checks its arguments and all options together. It panics if any is wrong, with an error that names each mistake and
// matches [holdfast.ErrInvalid]. Mistakes are a nil or empty argument, a Locker with several masters and no WithRedis, a
// value that an option cannot have, and options that cannot work together or with the Locker's, such as a WithMaxHold below
// the TTL.
func New(locker *holdfast.Locker, resource string, part Part, opts ...Option) *Guard {
	g := &Guard{locker: locker, target: target{resource, part}, config: defaults()}
	g.judge(&g.mistakes, "")
	for _, o := range opts {
		if o == nil {
			g.refuse("a nil option")
			continue
		}
		o.guard(&g.config)
	}
	if n := 1 + len(g.also); n > mostLocks {
		g.refuse("WithAlso: %d locks for one task: want at most %d", n, mostLocks)
	}
	g.maxDeferral, g.maxDelay = g.busy.bounds()
	if g.maxDeferral <= 0 {
		g.refuse("MaxDeferral(%v): want more than 0", g.maxDeferral)
	}
	if g.maxDelay < time.Second {
		g.refuse("MaxDelay(%v): want at least 1s, as asynq counts in seconds", g.maxDelay)
	}
	if g.busy.wait < 0 {
		g.refuse("WithBusy(Wait(%v)): negative", g.busy.wait)
	}
	if locker == nil {
		g.refuse("no Locker")
	} else if err := check(locker, g.lock); err != nil {
		g.refuse("WithLock: %v", err)
	}
	g.redis = g.tasksIn(locker, g.redis)
	if err := g.err("New"); err != nil {
		panic(err)
	}
	return g
}

// tasksIn returns the Redis that asynq uses: the one given to WithRedis, or else the Locker's.
func (m *mistakes) tasksIn(locker *holdfast.Locker, named redis.UniversalClient) redis.UniversalClient {
	if named == nil && locker != nil {
		if named = locker.Client(); named == nil {
			m.refuse("a Locker on several masters needs WithRedis, to name the Redis that has the tasks")
		}
	}
	return named
}

// isNil also reports a nil pointer or function in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || (r.Kind() == reflect.Func || r.Kind() == reflect.Pointer) && r.IsNil()
}

// check has the Locker check the options. The key is as long as a key can be, so that a prefix that leaves no room for it
// is found too.
func check(locker *holdfast.Locker, lock []holdfast.CallOption) error {
	opts := make([]holdfast.Option, len(lock))
	for i, o := range lock {
		opts[i] = o
	}
	return locker.Check(strings.Repeat("k", longestKey), opts...)
}

// Wrap returns a handler that calls next under the lock. It is an [asynq.MiddlewareFunc].
//
// Wrap the handler of one type with mux.Handle("payout", guard.Wrap(handler)), or all handlers with mux.Use(guard.Wrap).
// Use also wraps the mux's answer to unknown types, so a task of any type that has no key is archived. The log, or the hook
// Unnamed of a [Trace], reports its type and the missing field. If only some types have a key, give those a mux of their
// own.
//
// A middleware listed before the Guard runs outside the lock. It sees waits and deferrals. A deferral is an error, a
// [*DeferredError], and the middleware must return it, as it is or wrapped with %w. A middleware listed after the Guard
// runs under the lock.
//
// A task may already run under the lock, as it does under an outer Guard of the same key. It then keeps that lock and goes
// on. But if that lock allows more holders than this Guard does, see [WithLimit], the task fails each time, with
// [holdfast.ErrSelfDeadlock].
//
// Wrap panics if next is nil, like [asynq.ServeMux.Handle].
func (g *Guard) Wrap(next asynq.Handler) asynq.Handler {
	if isNil(next) {
		panic(invalid("Wrap: a nil handler"))
	}
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return g.process(ctx, t, next) })
}

func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if ctx.Value(configured{}) == nil {
		return errNotConfigured
	}
	keys, err := g.keys(t)
	if unnamed := (*keyError)(nil); errors.As(err, &unnamed) {
		g.tell(ctx, unnamedHook, Event{Task: t, Err: err})
		return g.decide(ctx, t, err)
	}
	if err != nil {
		return err
	}
	ran, err := g.run(ctx, keys, g.busy.wait, t, next)
	if ran {
		return err
	}
	outcome := g.refused(ctx, keys, t, next, err)
	if len(keys) > 1 {
		g.passOn(ctx, keys, err, outcome)
	}
	return outcome
}

// refused decides the outcome of a task that has not run.
func (g *Guard) refused(ctx context.Context, keys []string, t *asynq.Task, next asynq.Handler, err error) error {
	key := busyKey(keys, err)
	switch {
	case errors.Is(err, holdfast.ErrSelfDeadlock) && len(keys) == 1 && g.nested(ctx, keys[0]):
		return next.ProcessTask(ctx, t) // the same Guard twice, or another one for the same key
	case ctx.Err() != nil || errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrSelfDeadlock):
		return err // asynq does not wait for the outcome of an ended context
	case g.failOpen && errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, errGone):
		g.tell(ctx, unlockedHook, Event{Task: t, Key: key, Err: err})
		return next.ProcessTask(ctx, t)
	case g.busy.kind == skip && errors.Is(err, holdfast.ErrNotAcquired):
		g.tell(ctx, skippedHook, Event{Task: t, Key: key, Err: err})
		return nil
	case g.busy.kind == fail && errors.Is(err, holdfast.ErrNotAcquired):
		g.tell(ctx, failedHook, Event{Task: t, Key: key, Err: err})
		return g.decide(ctx, t, fmt.Errorf("asynqlock: %w", err))
	}
	return g.giveWay(ctx, keys, t, next, err)
}

// nested reports whether the lock that ctx already carries is enough for g. It is not if others can hold it too and g wants
// it alone.
func (g *Guard) nested(ctx context.Context, key string) bool {
	opts := append(g.lock[:len(g.lock):len(g.lock)], holdfast.WithWait(0), holdfast.WithReentrancy())
	lock, err := g.locker.Acquire(ctx, key, opts...)
	if err != nil {
		return false
	}
	defer func() { _ = lock.Release(ctx) }() // releases a handle: the hold goes on
	return has(ctx, lock)
}

// run calls the handler under the locks, if they can be had, and holds them until the handler returns, whatever happens to
// its context. asynq abandons a handler that outlives its timeout or a shutdown, and runs the task again elsewhere
// alongside it.
func (g *Guard) run(ctx context.Context, keys []string, wait time.Duration, t *asynq.Task, next asynq.Handler) (ran bool, err error) {
	var names []string // of the locks in Redis, with the Locker's prefix
	var listens func() bool
	r, result := refOf(ctx), errPanicked
	defer func() {
		if !ran {
			return
		}
		own := ""
		if listens() { // otherwise asynq may have run the task again by now, and that run been deferred
			own = noteOf(r.queue, r.id)
			if deferral(result) == nil && (result != nil || err != nil) {
				g.forget(ctx, r)
			}
		}
		for _, name := range names {
			g.wake(ctx, name, own) // after the release, also when the handler panics
		}
	}()
	if deadline, ok := ctx.Deadline(); ok {
		// When the context ends, asynq counts a failure of the handler, and ignores what it returns.
		left := time.Until(deadline)
		wait = max(0, min(wait, left-margin(left)))
	}
	var abandoned error
	task := ctx
	work := func(ctx context.Context) error {
		locks := holdfast.Held(ctx)[:1]
		if len(keys) > 1 {
			locks = taken(task, ctx)
		}
		for _, lock := range locks {
			names = append(names, lock.Key())
		}
		listens = context.AfterFunc(task, func() { g.forget(task, r) }) // asynq counts a failure
		ran = true
		result = next.ProcessTask(ctx, t)
		for _, lock := range locks {
			if err := lock.Err(); errors.Is(err, holdfast.ErrClosed) {
				abandoned = err // a Shutdown of the Locker released it, which the error of the release does not show
			}
		}
		return nil
	}
	opts := append(g.lock[:len(g.lock):len(g.lock)], holdfast.WithWait(wait))
	if len(keys) == 1 {
		err = g.locker.Do(ctx, keys[0], work, opts...)
	} else { // it keeps the locks that an outer Guard holds, and waits for the others
		err = g.locker.DoAll(ctx, keys, work, append(opts, holdfast.WithReentrancy())...)
	}
	key := keys[0]
	switch {
	case !ran && errors.Is(err, holdfast.ErrLost): // one was lost while it waited for another: nothing ran
		return false, fmt.Errorf("%w: %w: %v", holdfast.ErrUnavailable, errGone, err)
	case !ran:
		return false, err
	case abandoned != nil:
		err = fmt.Errorf("%w: %w", holdfast.ErrLost, abandoned)
	case err == nil:
		return true, result
	case !errors.Is(err, holdfast.ErrLost):
		// The handler ran under the lock, which now stays until its lease expires.
		g.tell(ctx, unreleasedHook, Event{Task: t, Key: key, Err: err})
		return true, result
	}
	g.tell(ctx, lostHook, Event{Task: t, Key: key, Err: err})
	if result != nil {
		return true, errors.Join(result, err)
	}
	return true, g.decide(ctx, t, err)
}

// errPanicked is the result of a handler that panics.
var errPanicked = errors.New("asynqlock: the handler panicked")

// margin is the part of its remaining time that a task does not spend waiting.
func margin(left time.Duration) time.Duration { return min(left/5, time.Second) }
