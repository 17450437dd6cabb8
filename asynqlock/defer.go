package asynqlock

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
)

const (
	// forwarding is how late asynq may be with a task that is due, unless it is configured otherwise.
	forwarding = 5 * time.Second

	// unknownDelay is for a key of which it is not known how long it stays busy: one that never expires, or Redis is away.
	unknownDelay = 5 * time.Second
)

// giveWay has the task come back later without spending a retry.
//
// asynq puts a task back when its handler returns an error that is no failure. But it looks first at whether there
// are retries left, and archives the task if there are none, failure or not: where none are left, a task of the same
// content takes its place. And the deadline of a task runs on: where it would be over, the task waits here instead,
// for as long as there is a chance.
func (g *Guard) giveWay(ctx context.Context, key string, t *asynq.Task, next asynq.Handler, busy error) error {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	limit, _ := asynq.GetMaxRetry(ctx)

	now := time.Now()
	d := &DeferredError{Key: key, Since: now, Delay: g.delay(busy), cause: busy}
	info, err := g.info(ctx, queue, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return fmt.Errorf("asynqlock: task %s is not in this Redis: is WithRedis asynq's? %w", id, err)
	case err == nil:
		if since, ok := deferredSince(t, info.LastErr); ok && since.Before(now) {
			d.Since = since
		}
		if !info.Deadline.IsZero() && now.Add(d.Delay+forwarding).After(info.Deadline) {
			ran, err := g.run(ctx, key, time.Until(info.Deadline), t, next)
			if ran || ctx.Err() != nil {
				return err
			}
			busy = err
		}
	}
	if now.Sub(d.Since) > g.maxDeferral {
		g.tell(ctx, Event{Kind: Failed, Task: t, Key: key, Since: d.Since, Err: busy})
		return fmt.Errorf("asynqlock: %v since %s is too long: %w", g.maxDeferral, d.Since.UTC().Format(time.RFC3339), busy)
	}
	event := Event{Kind: Deferred, Task: t, Key: key, Since: d.Since, Delay: d.Delay, Err: busy}
	if retried < limit {
		if g.note(ctx, busy, queue, id, d) {
			// The lock may have been released before there was a note for whoever did. So look again, behind it.
			ran, err := g.run(ctx, key, 0, t, next)
			if ran || ctx.Err() != nil {
				return err
			}
			d.cause, event.Err = err, err
		}
		g.tell(ctx, event)
		return d
	}
	successor, err := g.handOn(ctx, t, queue, id, info, d)
	if err != nil {
		// A failure, and no deferral: asynq archives the task, and ErrorHandler ought to know.
		return fmt.Errorf("asynqlock: no task takes the place of one without retries left: %w", errors.Join(err, busy))
	}
	event.Kind = HandedOn
	g.tell(ctx, event)
	g.note(ctx, busy, queue, successor, d)
	if state, err := g.locker.Inspect(ctx, key); err == nil && !state.Held {
		g.wake(ctx, state.Key, "")
	}
	return nil
}

// info looks a task up.
//
// A client of asynq adds its queues to the set of all queues once. When Redis has lost its data it never does again: the
// tasks that it enqueues run, and the Inspector says that there is no such queue. So the set is mended where the task is
// there all the same.
func (g *Guard) info(ctx context.Context, queue, id string) (*asynq.TaskInfo, error) {
	info, err := g.inspector.GetTaskInfo(queue, id)
	if !errors.Is(err, asynq.ErrQueueNotFound) {
		return info, err
	}
	if n, _ := g.redis.Exists(ctx, "asynq:{"+queue+"}:t:"+id).Result(); n == 0 {
		return nil, err
	}
	if err := g.redis.SAdd(ctx, "asynq:queues", queue).Err(); err != nil {
		return nil, err
	}
	return g.inspector.GetTaskInfo(queue, id)
}

// delay is what the holder's lease has left, and a random part more.
func (g *Guard) delay(err error) time.Duration {
	left := unknownDelay
	var held *core.HeldError
	if errors.As(err, &held) && held.TimeLeft > 0 {
		left = held.TimeLeft
	}
	left += rand.N(max(left/4, time.Second))
	return min(left, g.maxDelay-rand.N(g.maxDelay/4))
}

// The headers of a task that took another's place.
const (
	originHeader = "holdfast-origin" // the ID of the first
	sinceHeader  = "holdfast-since"  // when that was deferred first
)

// Origin is the ID of the task that t stands for: where t took the place of one that asynq would have archived, the ID
// of that one, and else t's own, which ctx has. Use it where the ID names the work, for idempotency say.
func Origin(ctx context.Context, t *asynq.Task) string {
	if id := t.Headers()[originHeader]; id != "" {
		return id
	}
	id, _ := asynq.GetTaskID(ctx)
	return id
}

// deferredSince reads from what the task carries when it was deferred first. A failure in between starts anew, also that
// of a task in another's place, which is archived by it and may be run again by hand.
func deferredSince(t *asynq.Task, lastErr string) (time.Time, bool) {
	text := t.Headers()[sinceHeader]
	if lastErr != "" {
		_, text, _ = strings.Cut(lastErr, deferredText)
		text, _, _ = strings.Cut(text, ",")
	}
	since, err := time.Parse(time.RFC3339, text)
	return since, err == nil
}

// handOn enqueues a task of the same content in the place of one that has no retry left. The other one completes then.
// It does not give up while asynq waits for the outcome: what it returns an error for is archived.
func (g *Guard) handOn(ctx context.Context, t *asynq.Task, queue, id string, info *asynq.TaskInfo, d *DeferredError) (successor string, err error) {
	origin := Origin(ctx, t)
	headers := maps.Clone(t.Headers())
	if headers == nil {
		headers = map[string]string{}
	}
	headers[originHeader] = origin
	headers[sinceHeader] = d.Since.UTC().Format(time.RFC3339)
	// Whatever else has an ID of this form, a task of the user's or what came of an earlier task of the same ID, has to
	// stay apart: asynq keeps archived tasks for months.
	successor = origin + "~" + crand.Text()[:10]
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		if info == nil {
			info, err = g.info(ctx, queue, id)
		}
		if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
			return "", err // Redis has forgotten it in the meantime
		}
		if info != nil {
			_, err = g.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(t.Type(), t.Payload(), headers),
				asynq.TaskID(successor), asynq.Queue(queue), asynq.MaxRetry(0), asynq.ProcessIn(d.Delay),
				asynq.Timeout(info.Timeout), asynq.Deadline(info.Deadline), asynq.Retention(info.Retention))
		}
		if info != nil && (err == nil || errors.Is(err, asynq.ErrTaskIDConflict)) { // of an earlier try, whose answer was lost
			return successor, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", err
		}
	}
}
