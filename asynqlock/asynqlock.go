package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/redis/go-redis/v9"
)

// Guard runs tasks that name the same thing one at a time. It is safe for concurrent use.
//
// asynq's Unique keeps a task of the same type and payload out of the queue, but says nothing about runs. Use both if a
// second request adds nothing.
//
// In addition to the lock's keys, a Guard uses these, in asynq's Redis:
//
//	asynqlock:queues:<lock>              queues with deferred tasks, a set  SMEMBERS SADD PEXPIRE
//	asynqlock:deferred:{<queue>}:<lock>  these tasks, a sorted set          ZADD ZREM ZRANGE ZRANK EXISTS PTTL PEXPIRE
//	asynqlock:share*:{<queue>}:*         the same, of WithShare             the same, ZCARD
//	asynqlock:order:{<queue>}:<key>      tasks of WithOrder, a sorted set   ZADD ZREM ZRANGE ZRANK ZSCORE PEXPIRE
//	asynq:{<queue>}:t:<id>               asynq's hash of a task             HGET HMGET HSET HDEL HEXISTS HINCRBY
//	asynq:{<queue>}:pending              asynq's list                       LPOS LREM RPUSH
//	asynq:{<queue>}:retry                asynq's sorted set                 ZADD ZREM
//	asynq:{<queue>}:archived             asynq's sorted set                 ZREM
//	asynq:{<queue>}:paused               asynq's string                     EXISTS
//
// The first three expire at most twice [Policy.MaxDelay] after the last deferral, an order after 90 days. A deferred task has fields of its hash that
// begin with "holdfast". Without these commands nothing wakes a deferred task, and one without retries left fails.
type Guard struct {
	locker *holdfast.Locker
	config
}

// New returns a Guard whose tasks run under the lock holdfast.Key(resource, parts...), where part takes the parts from
// the task. It panics if an argument or an option is wrong, or contradicts another one or the Locker's, with an error
// that names each mistake and matches [holdfast.ErrInvalid]. A Locker with several masters needs [WithRedis].
func New(locker *holdfast.Locker, resource string, part Part, opts ...Option) *Guard {
	g := &Guard{locker: locker, config: config{targets: []target{{Resource: resource, Part: part}}}}
	for _, o := range opts {
		if o == nil {
			g.mistakes.Refuse("a nil option")
			continue
		}
		o.guard(&g.config)
	}
	g.maxDeferral, g.maxDelay = g.busy.bounds()
	if g.maxDeferral <= 0 {
		g.mistakes.Refuse("MaxDeferral(%v): want more than 0", g.maxDeferral)
	}
	if g.maxDelay < time.Second {
		g.mistakes.Refuse("MaxDelay(%v): want at least 1s, as asynq counts in seconds", g.maxDelay)
	}
	if g.busy.wait < 0 {
		g.mistakes.Refuse("WithBusy(Wait(%v)): negative", g.busy.wait)
	}
	g.judgeOrder()
	wiring.Judge(&g.mistakes, locker, g.targets, g.lock, g.share)
	g.redis = tasksIn(&g.mistakes, locker, g.redis)
	if err := g.mistakes.Err("asynqlock: New"); err != nil {
		panic(err)
	}
	return g
}

// tasksIn returns the Redis that asynq uses: the one given to WithRedis, or else the Locker's.
func tasksIn(m *wiring.Mistakes, locker *holdfast.Locker, named redis.UniversalClient) redis.UniversalClient {
	if named == nil && locker != nil {
		if named = locker.Client(); named == nil {
			m.Refuse("a Locker on several masters needs WithRedis, to name the Redis that has the tasks")
		}
	}
	return named
}

// isNil also reports a nil pointer or function in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || (r.Kind() == reflect.Func || r.Kind() == reflect.Pointer) && r.IsNil()
}

// Wrap returns a handler that calls next under the lock. It is an [asynq.MiddlewareFunc]. If only some types have a key,
// give those a mux of their own.
//
// A middleware in front of the Guard runs outside the lock. It must return a [*DeferredError] as it is or wrapped with
// %w, or the deferral becomes a failure. A task keeps the lock of an outer Guard; if that has a higher limit, the task
// fails with [holdfast.ErrSelfDeadlock].
func (g *Guard) Wrap(next asynq.Handler) asynq.Handler {
	if isNil(next) {
		panic(invalid("Wrap: a nil handler"))
	}
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return g.process(ctx, t, next) })
}

func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if serverOf(ctx) == nil {
		return errNotConfigured
	}
	want, err := wiring.Named(g.targets, g.share, t, unnamed(t))
	if key := (*keyError)(nil); errors.As(err, &key) {
		g.tell(ctx, unnamedHook, Event{Task: t, Err: err})
		return g.decide(ctx, t, err)
	}
	if err != nil {
		return err
	}
	ran := false
	if g.ordered {
		err = g.turn(ctx, want.Keys[0], refOf(ctx, ""), true)
	}
	if err == nil {
		ran, err = g.run(ctx, want, g.busy.wait, true, t, next)
	}
	if ran {
		return err
	}
	outcome := g.refused(ctx, want, t, next, err)
	if len(want.Keys) > 1 {
		g.passOn(ctx, want, err, outcome)
	}
	return outcome
}

// refused decides the outcome of a task that has not run.
func (g *Guard) refused(ctx context.Context, want wiring.Locks, t *asynq.Task, next asynq.Handler, err error) error {
	key := busyKey(want.Keys, err)
	switch {
	case ctx.Err() != nil || errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrSelfDeadlock):
		return err // asynq does not wait for the outcome of an ended context
	case g.failOpen && errors.Is(err, holdfast.ErrUnavailable):
		g.tell(ctx, unlockedHook, Event{Task: t, Key: key, Err: err})
		return next.ProcessTask(ctx, t)
	case g.busy.kind == skip && errors.Is(err, holdfast.ErrNotAcquired):
		g.tell(ctx, skippedHook, Event{Task: t, Key: key, Err: err})
		return nil
	case g.busy.kind == fail && errors.Is(err, holdfast.ErrNotAcquired):
		g.tell(ctx, failedHook, Event{Task: t, Key: key, Err: err})
		return g.decide(ctx, t, fmt.Errorf("asynqlock: %w", err))
	}
	return g.putBack(ctx, want, t, next, err)
}

// run calls the handler under the locks, if they can be had, and holds them until the handler returns, whatever happens to
// its context. asynq abandons a handler that outlives its timeout or a shutdown, and runs the task again elsewhere
// alongside it. turn is true if it is known to be the task's turn.
func (g *Guard) run(ctx context.Context, want wiring.Locks, wait time.Duration, turn bool, t *asynq.Task, next asynq.Handler) (ran bool, err error) {
	var names []string // of the locks in Redis, with the Locker's prefix
	var listens func() bool
	var began time.Time
	var refusal error
	r, result := refOf(ctx, want.Share), errPanicked
	defer func() {
		if !ran {
			return
		}
		own := taskRef{}
		if listens() { // otherwise asynq may have run the task again by now, and that run been deferred
			own = r
			if deferral(result) == nil && (result != nil || err != nil) {
				g.forget(ctx, r)
			}
			if g.ordered && comesBack(r, cmp.Or(err, result)) {
				return
			}
		}
		// A task that did not have to wait means that none was there when the one before it ended, and the key was idle
		// until it came. So it wakes one to run and one to wait. If it took longer than that one would wait, it is not
		// worth it.
		n := 1
		if (wait == 0 || g.ordered) && time.Since(began) < patience && serverOf(ctx).room() {
			n = 2
		}
		wake := func() {
			for _, name := range names {
				g.wake(ctx, name, own, n) // after the release, also when the handler panics
			}
		}
		if g.ordered {
			go wake() // the next one waits until asynq knows that this one is done
		} else {
			wake()
		}
	}()
	if deadline, ok := ctx.Deadline(); ok {
		// When the context ends, asynq counts a failure of the handler, and ignores what it returns.
		left := time.Until(deadline)
		wait = max(0, min(wait, left-margin(left)))
	}
	task := ctx
	work := func(ctx context.Context) error {
		if g.ordered && !turn {
			if refusal = g.turn(ctx, want.Keys[0], r, false); refusal != nil {
				return nil
			}
		}
		locks := holdfast.Taken(ctx)
		for _, lock := range locks {
			names = append(names, g.name(want.Keys, lock.Key()))
		}
		listens = context.AfterFunc(task, func() { g.forget(task, r) }) // asynq counts a failure
		ran, began = true, time.Now()
		for _, lock := range locks {
			if lock.Limit() > 1 && !g.ordered {
				g.fill(task, lock, want.Keys, r)
			}
		}
		result = next.ProcessTask(ctx, t)
		return nil
	}
	// It keeps the locks that an outer Guard holds, wakes no tasks for them, and waits for the others.
	opts := append(g.lock[:len(g.lock):len(g.lock)], holdfast.WithWait(wait), holdfast.WithReentrancy())
	err = g.locker.DoAll(ctx, want.Keys, work, want.Options(opts...)...)
	key := want.Keys[0]
	switch {
	case !ran:
		return false, cmp.Or(refusal, err)
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
