package asynqlock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/redis/go-redis/v9"
)

// With WithOrder the tasks of a key and a queue have places, in a sorted set of asynq's Redis, and a handler begins only if no task
// with an earlier place may still run. A task's place counts from its enqueueing until asynq has completed, archived or deleted it, by asynq's
// own record of the task. Why that is the order of enqueueing, whatever fails:
//
//   - Enqueue gives the place after asynq has the task, and before it returns. If one call has returned before another begins, the
//     task of the first has its place, or is done, before that of the second exists. Places only rise. So the second task's is the
//     later one, whether Enqueue gives it or, if that comes first or never comes, the worker that gets the task. A call that is
//     killed, or fails, in between leaves a task without a place, and never a place without a task, for which others would wait.
//   - A worker looks before it calls the handler, and asynq puts tasks in any order it likes: only the first one runs. The first
//     stays the first until it is done, as places are given behind it only, so it may look before it takes the lock.
//   - What is done is what asynq says is done. If a worker is killed between its handler's end and that, asynq runs the task again, and
//     the tasks behind it wait for that run as for the first.
//
// Without Enqueue there is no such order: the workers that take two tasks from a queue ask for their places in any order, and of what
// a killed worker had taken, asynq keeps no order either.
//
// The lock stays what keeps runs apart. A handler that asynq has abandoned holds it, when the turn may be the next one's.
//
// A task that is not the first is deferred like one that finds its key busy, with its place for a note, and the end of the one before
// it wakes it.

//go:embed order.lua
var orderText string

//go:embed place.lua
var placeText string

//go:embed turn.lua
var turnText string

//go:embed next.lua
var nextText string

var (
	placeScript = redis.NewScript(asynqNames + orderText + placeText)
	turnScript  = redis.NewScript(asynqNames + orderText + turnText)
	nextScript  = redis.NewScript(asynqNames + orderText + nextText)
)

const (
	// orderLife is for how long the order of a key is kept after the last task has come. asynq keeps an archived task for as long.
	orderLife = 90 * 24 * time.Hour

	// mostBehind bounds the pauses between two looks of the next task at the first one: somebody may have deleted that by hand.
	mostBehind = 24 * time.Second

	// asynq records that a task is done after the Guard has returned, and released the lock. A task that is the next waits for that,
	// at first for about a round trip. Then it has the lock, and looks this often, with pauses that double.
	turnLooks = 4
	turnPause = 250 * time.Microsecond
)

// orderKey returns the key of the places of a queue's tasks that name a key.
func orderKey(key, queue string) string { return "asynqlock:order:{" + queue + "}:" + key }

// turnError is the error of a task that is not the first of its key.
type turnError struct {
	key    string
	active bool // a worker has the first one
}

func (e *turnError) Error() string {
	return fmt.Sprintf("asynqlock: a task of %s that was enqueued before is not done", e.key)
}

func (e *turnError) Is(target error) bool { return target == holdfast.ErrNotAcquired }

// Enqueue is client.EnqueueContext for [WithOrder]. The place of a task enqueued otherwise, for later, into a group or with an
// error is from when a worker first sees it.
func (g *Guard) Enqueue(ctx context.Context, client *asynq.Client, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if !g.ordered {
		return nil, invalid("Enqueue: the Guard has no WithOrder")
	}
	want, err := wiring.Named(g.targets, nil, task, unnamed(task))
	if err != nil {
		return nil, err
	}
	info, err := client.EnqueueContext(ctx, task, opts...)
	if err != nil || info.State != asynq.TaskStatePending {
		return info, err
	}
	deadline := ""
	if !info.Deadline.IsZero() {
		deadline = fmt.Sprint(info.Deadline.Unix())
	}
	r := taskRef{queue: info.Queue, id: info.ID}
	if _, err := g.inOrder(ctx, placeScript, want.Keys[0], r, orderLife.Milliseconds(), deadline); err != nil {
		return info, fmt.Errorf("asynqlock: task %s is enqueued, but has no place in the order: %w", r.id, err)
	}
	return info, nil
}

// runSoon is run, for a task that may wait. If the lock is free because the task before it, which a worker has, has not taken it yet,
// the task makes room for that one, and stands in line again.
func (g *Guard) runSoon(ctx context.Context, want wiring.Locks, wait time.Duration, t *asynq.Task, next asynq.Handler) (ran bool, err error) {
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		ran, err = g.run(ctx, want, max(time.Until(end), 0), false, t, next)
		turn := (*turnError)(nil)
		if ran || !errors.As(err, &turn) || !turn.active || time.Now().After(end) {
			return ran, err
		}
	}
}

// inOrder runs one of the scripts that begin with order.lua.
func (g *Guard) inOrder(ctx context.Context, script *redis.Script, key string, r taskRef, args ...any) (int, error) {
	keys := []string{r.key(), orderKey(key, r.queue)}
	args = append([]any{r.id, taskPrefix(r.queue), time.Now().UnixNano()}, args...)
	return script.Run(ctx, g.redis, keys, args...).Int()
}

// turn returns nil if it is the task's turn, or else a *turnError, or what keeps it from knowing that. The first look of a run may
// bring the first task forward.
func (g *Guard) turn(ctx context.Context, key string, r taskRef, begins bool) error {
	look, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	for pause, i := turnPause, 1; ; pause, i = 2*pause, i+1 {
		reply, err := g.inOrder(look, turnScript, key, r, orderLife.Milliseconds(), begins)
		switch {
		case err != nil:
			return fmt.Errorf("%w: the order of %s: %w", holdfast.ErrUnavailable, key, err)
		case reply == 0:
			return nil
		case reply < 0: // putBack finds out the same, and says it
		case reply == 3 && i < turnLooks && !(begins && i > 1):
			time.Sleep(pause)
			continue
		case reply == 4 && begins:
			g.runNext(look, key, r.queue, taskRef{}, 1)
		}
		return &turnError{key, reply == 2 || reply == 3}
	}
}

// runFirst has asynq run the first n tasks of an order, if they are deferred. own has just run.
func (g *Guard) runFirst(ctx context.Context, key, queue string, own taskRef, n int) (int, error) {
	keys := []string{taskKey(queue, own.id), orderKey(key, queue), pendingKey(queue), retryKey(queue), archivedKey(queue), pausedKey(queue)}
	return nextScript.Run(ctx, g.redis, keys, own.id, taskPrefix(queue), time.Now().UnixNano(), n, furthest).Int()
}

// comesBack reports that a run was not the last of its task. The others wait for the next one.
func comesBack(r taskRef, err error) bool {
	if err == nil || errors.Is(err, asynq.RevokeTask) {
		return false
	}
	return deferral(err) != nil || r.retried < r.limit && !errors.Is(err, asynq.SkipRetry)
}

// judgeOrder records what WithOrder does not go with.
func (c *config) judgeOrder() {
	refuse := func(set bool, what string) {
		if c.ordered && set {
			c.mistakes.Refuse("WithOrder does not go with %s", what)
		}
	}
	refuse(len(c.targets) > 1, "WithAlso: an order is that of one key")
	refuse(c.share != nil, "WithShare: tasks take turns, or come in their order")
	refuse(c.failOpen, "WithFailOpen: a task whose lock is unknown can overtake nobody")
	refuse(c.busy.kind != deferred || c.busy.wait > 0, "WithBusy, but for Defer: a task that is not the first comes later")
}

// name returns what the notes of tasks are kept under: the key itself with WithOrder, as a task may have to wait before the name of its
// lock is known, and otherwise that name.
func (g *Guard) name(keys []string, lock string) string {
	if g.ordered {
		return keys[0]
	}
	return lock
}
