package asynqlock

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
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
func (g *Guard) giveWay(ctx context.Context, keys []string, t *asynq.Task, next asynq.Handler, busy error) error {
	r, now := refOf(ctx), time.Now()
	d := &DeferredError{Key: busyKey(keys, busy), Since: now, Delay: g.delay(busy), cause: busy}
	rec, err := g.record(ctx, r)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound):
		return fmt.Errorf("asynqlock: task %s is not in this Redis: is WithRedis asynq's? %w", r.id, err)
	case err == nil:
		d.failure = rec.failure
		if rec.goesOn && rec.since.Before(now) {
			d.Since = rec.since
		}
		if rec.woken {
			ran, err := g.run(ctx, keys, wokenWait, t, next)
			if ran || ctx.Err() != nil {
				return err
			}
			time.Sleep(settling)
			busy, d.Key, d.cause, d.Delay, rec.goesOn = err, busyKey(keys, err), err, g.delay(err), false
		}
		if deadline := time.Unix(int64(rec.number(deadlineField)), 0); deadline.Unix() > 0 && now.Add(d.Delay+forwarding).After(deadline) {
			ran, err := g.run(ctx, keys, time.Until(deadline), t, next)
			if ran || ctx.Err() != nil {
				return err
			}
			busy, d.Key = err, busyKey(keys, err)
		}
	}
	if now.Sub(d.Since) > g.maxDeferral {
		g.forget(ctx, r)
		g.tell(ctx, failedHook, Event{Task: t, Key: d.Key, Since: d.Since, Err: busy})
		return g.decide(ctx, t, fmt.Errorf("asynqlock: %v since %s is too long: %w", g.maxDeferral, d.Since.UTC().Format(time.RFC3339), busy))
	}
	event := Event{Task: t, Key: d.Key, Since: d.Since, Delay: d.Delay, Err: busy}
	if r.retried < r.limit {
		known := rec != nil && rec.goesOn || g.remember(ctx, r, formatState(d.Since, r.retried, d.failure))
		for range keys {
			if !known || !g.note(ctx, busy, r.queue, r.id, d) {
				break
			}
			// The lock may have been released before there was a note for its releaser. So look again, behind it.
			ran, err := g.run(ctx, keys, 0, t, next)
			if ran || ctx.Err() != nil {
				return err
			}
			noted := d.Key
			busy, d.Key, d.cause = err, busyKey(keys, err), err
			if event.Key, event.Err = d.Key, err; d.Key == noted {
				break
			}
		}
		g.tell(ctx, deferredHook, event)
		return d
	}
	// Whatever else has an ID of this form, a task of the user's or what came of an earlier task of the same ID, has to
	// stay apart: asynq keeps archived tasks for months.
	origin := Origin(ctx, t)
	successor := origin + "~" + crand.Text()[:10]
	if err := g.put(ctx, r, rec, successor, origin, d); err != nil {
		// A failure, and no deferral: asynq archives the task, and ErrorHandler ought to know.
		return fmt.Errorf("asynqlock: no task takes the place of one without retries left: %w", errors.Join(err, busy))
	}
	g.tell(ctx, handedOnHook, event)
	g.note(ctx, busy, r.queue, successor, d)
	if state, err := g.locker.Inspect(ctx, d.Key); err == nil && !state.Held {
		g.wake(ctx, state.Key, "")
	}
	d.replaced = true
	return d
}

// delay is what the holder's lease has left, and a random part more.
func (g *Guard) delay(err error) time.Duration {
	left := unknownDelay
	var held *holdfast.HeldError
	if errors.As(err, &held) && held.TimeLeft > 0 {
		left = held.TimeLeft
	}
	left += rand.N(max(left/4, time.Second))
	return min(left, g.maxDelay-rand.N(g.maxDelay/4))
}

// originHeader is of a task that took another's place: the ID of the first.
const originHeader = "holdfast-origin"

// Origin is the ID of the task that t stands for: where t took the place of one that asynq would have archived, the ID
// of that one, and else t's own, which ctx has. Use it where the ID names the work, for idempotency say.
func Origin(ctx context.Context, t *asynq.Task) string {
	if id := t.Headers()[originHeader]; id != "" {
		return id
	}
	id, _ := asynq.GetTaskID(ctx)
	return id
}
