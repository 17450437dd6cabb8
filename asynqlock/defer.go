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
	// forwarding is how late asynq may pick up a task that is due, by its default configuration.
	forwarding = 5 * time.Second

	// unknownDelay applies if nobody knows how long the key stays busy: because it never expires, or because Redis is
	// unavailable.
	unknownDelay = 5 * time.Second
)

// giveWay defers the task: it comes back later without spending a retry.
//
// asynq puts a task back if its handler returns an error that is not a failure. But first it checks the retries, and
// archives a task that has none left, failure or not. So a new task of the same content takes the place of such a task. And
// a task's deadline keeps running: if it would pass before the task comes back, the task waits here instead, for as long as
// there is a chance.
func (g *Guard) giveWay(ctx context.Context, keys []string, t *asynq.Task, next asynq.Handler, busy error) error {
	r, now := refOf(ctx), time.Now()
	d := &DeferredError{Key: busyKey(keys, busy), Since: now, Delay: g.delay(busy), cause: busy}
	rec, err := g.record(ctx, r)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound):
		return fmt.Errorf("asynqlock: task %s is not in this Redis: name asynq's by WithRedis: %w", r.id, err)
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
			// The lock may have been released before its holder could find the note. So look again now that the note is there.
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
	// Another task may have an ID of this form: a task of the user's, or the successor of an earlier task with the same ID.
	// The random text keeps them apart, because asynq keeps archived tasks for months.
	origin := Origin(ctx, t)
	successor := origin + "~" + crand.Text()[:10]
	if err := g.put(ctx, r, rec, successor, origin, d); err != nil {
		// This is a failure and not a deferral: asynq archives the task, and ErrorHandler should be called.
		return fmt.Errorf("asynqlock: cannot replace a task that has no retries left: %w", errors.Join(err, busy))
	}
	g.tell(ctx, handedOnHook, event)
	g.note(ctx, busy, r.queue, successor, d)
	if state, err := g.locker.Inspect(ctx, d.Key); err == nil && !state.Held {
		g.wake(ctx, state.Key, "")
	}
	d.replaced = true
	return d
}

// delay returns what is left of the holder's lease plus a random part.
func (g *Guard) delay(err error) time.Duration {
	left := unknownDelay
	var held *holdfast.HeldError
	if errors.As(err, &held) && held.TimeLeft > 0 {
		left = held.TimeLeft
	}
	left += rand.N(max(left/4, time.Second))
	return min(left, g.maxDelay-rand.N(g.maxDelay/4))
}

// originHeader is the header of a task that took the place of another. It has the ID of the first one.
const originHeader = "holdfast-origin"

// Origin returns the ID of the task that t stands for. For a task that took the place of another, see [Defer], it is the ID
// of the first one. For any other task it is t's own ID, which ctx carries. Use it if the ID names the work, for example as
// an idempotency key.
func Origin(ctx context.Context, t *asynq.Task) string {
	if id := t.Headers()[originHeader]; id != "" {
		return id
	}
	id, _ := asynq.GetTaskID(ctx)
	return id
}
