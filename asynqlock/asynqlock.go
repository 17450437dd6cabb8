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

	// mostLocks is what DoAll takes.
	mostLocks = 64
)

// Guard runs the tasks that name the same thing one at a time. It is safe for concurrent use; make it with [New].
//
// It is no substitute for asynq's Unique, nor the other way round. Unique keeps a task out of the queue while an equal one,
// in type and payload, is in it: it is about enqueueing, expires, and says nothing about runs, of which there may be several
// after a timeout. A Guard is about running: tasks of any types and payloads that name the same thing all run, one after the
// other. Use both where a second request adds nothing: Unique drops what need not run twice, and the Guard keeps apart what
// must not run together.
//
// Keys: beside the lock's, which package holdfast describes, and asynq's own, there is asynqlock:deferred:<key of the lock>, a
// sorted set of the tasks that gave way, by scripts with ZADD, ZREM, ZPOPMIN, PTTL and PEXPIRE. It expires with the last delay.
// A deferred task has more fields in asynq's hash of it, "holdfast" and some that begin like it, which go with the task. Of
// asynq's keys, scripts use those of the task, of the lists pending and retry, and what Unique has locked, with EXISTS, HGET,
// HMGET, HSET, HDEL, LPOS, LREM, RPUSH, ZREM, ZADD, GET and SET. Where an ACL denies it, tasks are not woken, and come back when
// their delay is over.
type Guard struct {
	locker *holdfast.Locker
	target
	config
}

// New returns a Guard whose tasks run under the lock holdfast.Key(resource, parts...), with the parts that part takes from
// the task. Whatever else locks the same key of the same Redis is excluded as well: another type of task, a request, a
// cron job.
//
// asynq has to have the Redis that the Locker has, or else [WithRedis] names its own: a task that gives way to another
// is looked up there, and is enqueued again where asynq would archive it.
//
// New judges the arguments and all options, and panics with an error that names each mistake: it matches
// [holdfast.ErrInvalid]. Mistakes are a nil or empty argument, a Locker on several masters without WithRedis, a value that an
// option cannot have, and options that cannot work together or with the Locker's, such as a WithMaxHold below the TTL.
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
		g.refuse("WithAlso makes it %d locks of a task: want at most %d", n, mostLocks)
	}
	g.maxDeferral, g.maxDelay = g.busy.bounds()
	if g.maxDeferral <= 0 {
		g.refuse("MaxDeferral(%v): want more than 0", g.maxDeferral)
	}
	if g.maxDelay < time.Second {
		g.refuse("MaxDelay(%v): want 1s at least, in which asynq counts", g.maxDelay)
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

// tasksIn is the Redis that asynq has: the one that WithRedis names, or else the Locker's.
func (m *mistakes) tasksIn(locker *holdfast.Locker, named redis.UniversalClient) redis.UniversalClient {
	if named == nil && locker != nil {
		if named = locker.Client(); named == nil {
			m.refuse("a Locker on several masters needs WithRedis: which one has the tasks?")
		}
	}
	return named
}

// isNil also finds a nil pointer or function in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || (r.Kind() == reflect.Func || r.Kind() == reflect.Pointer) && r.IsNil()
}

// check has the Locker judge the options. The key is as long as one can get, so that a prefix that leaves no room for it is found
// as well.
func check(locker *holdfast.Locker, lock []holdfast.CallOption) error {
	opts := make([]holdfast.Option, len(lock))
	for i, o := range lock {
		opts[i] = o
	}
	return locker.Check(strings.Repeat("k", longestKey), opts...)
}

// Wrap returns a handler that calls next under the lock. It is an [asynq.MiddlewareFunc].
//
// Wrap the handler of one type with mux.Handle("payout", guard.Wrap(handler)), or all handlers with mux.Use(guard.Wrap). Use
// wraps the mux's answer to unknown types as well: a task of any type that names nothing to lock by is archived, which the log or
// the hook Unnamed of a [Trace] says, with the type and the field. Give types that share a Guard a mux of their own if other
// types have no key.
//
// A middleware listed before the Guard sees tasks wait and give way. It sees a deferral as an error, a [*DeferredError], and has
// to return it, wrapped with %w at most. A middleware listed behind the Guard runs under the lock. A task that runs under the
// lock already, as behind an outer Guard of the same key, goes on under it, unless others may have it too, by [WithLimit], and
// this Guard wants it alone: then it fails each time, with [holdfast.ErrSelfDeadlock].
//
// Wrap panics on a nil handler, as [asynq.ServeMux.Handle] does.
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

// refused is for a task that has not run.
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

// nested tells whether the lock that ctx carries already will do for g: not one that others may have too, if g wants it alone.
func (g *Guard) nested(ctx context.Context, key string) bool {
	opts := append(g.lock[:len(g.lock):len(g.lock)], holdfast.WithWait(0), holdfast.WithReentrancy())
	lock, err := g.locker.Acquire(ctx, key, opts...)
	if err != nil {
		return false
	}
	defer func() { _ = lock.Release(ctx) }() // of a handle: the hold goes on
	return has(ctx, lock)
}

// run has the handler work under the locks if they can be had, and holds it until the handler returns, whatever becomes
// of its context: asynq gives up a handler that outlives its timeout, or a shutdown, and the task runs again
// elsewhere beside it.
func (g *Guard) run(ctx context.Context, keys []string, wait time.Duration, t *asynq.Task, next asynq.Handler) (ran bool, err error) {
	var names []string // of the locks in Redis, which have the Locker's prefix
	var listens func() bool
	r, result := refOf(ctx), errPanicked
	defer func() {
		if !ran {
			return
		}
		own := ""
		if listens() { // else the task may have been run again by now, and be the one that gave way
			own = noteOf(r.queue, r.id)
			if deferral(result) == nil && (result != nil || err != nil) {
				g.forget(ctx, r)
			}
		}
		for _, name := range names {
			g.wake(ctx, name, own) // after the release, and also behind a panic
		}
	}()
	if deadline, ok := ctx.Deadline(); ok {
		// When the context ends, asynq counts a failure of the handler, and does not listen any more.
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
				abandoned = err // a Shutdown of the Locker gave it up; the release does not tell
			}
		}
		return nil
	}
	opts := append(g.lock[:len(g.lock):len(g.lock)], holdfast.WithWait(wait))
	if len(keys) == 1 {
		err = g.locker.Do(ctx, keys[0], work, opts...)
	} else { // under those that an outer Guard has it goes on, and waits for the others
		err = g.locker.DoAll(ctx, keys, work, append(opts, holdfast.WithReentrancy())...)
	}
	key := keys[0]
	switch {
	case !ran && errors.Is(err, holdfast.ErrLost): // one went while it waited for another: nothing ran
		return false, fmt.Errorf("%w: %w: %v", holdfast.ErrUnavailable, errGone, err)
	case !ran:
		return false, err
	case abandoned != nil:
		err = fmt.Errorf("%w: %w", holdfast.ErrLost, abandoned)
	case err == nil:
		return true, result
	case !errors.Is(err, holdfast.ErrLost):
		// The work was done under the lock, which now stays until its lease ends.
		g.tell(ctx, unreleasedHook, Event{Task: t, Key: key, Err: err})
		return true, result
	}
	g.tell(ctx, lostHook, Event{Task: t, Key: key, Err: err})
	if result != nil {
		return true, errors.Join(result, err)
	}
	return true, g.decide(ctx, t, err)
}

// errPanicked is what a handler returns that does not return.
var errPanicked = errors.New("asynqlock: the handler panicked")

// margin is what a task does not spend waiting of the time that it has left.
func margin(left time.Duration) time.Duration { return min(left/5, time.Second) }
