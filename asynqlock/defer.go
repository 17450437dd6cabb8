package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

const (
	// patience is how long a task may wait for its key in its worker before it is deferred. Within it, the run before ends if
	// it is short, and so does a request.
	patience = 200 * time.Millisecond

	// forwarding is how late asynq may pick up a task that is due, by its default configuration.
	forwarding = 5 * time.Second

	// unknownDelay applies if nobody knows how long the key stays busy: because it never expires, or because Redis is
	// unavailable.
	unknownDelay = 5 * time.Second

	// A task that others are noted in front of comes back by itself only if these have not woken it for long.
	leastBehind = time.Minute
	perPlace    = 100 * time.Millisecond
)

// putBack lets the task wait for its key in its worker, or defers it: it comes back later without spending a retry.
//
// A task waits in its worker if it was woken, or if it would be the first to be deferred: behind a request or a cron job,
// whose release wakes nobody, it would be idle for longer than that takes. A task that was woken waits for the one that has
// the key now. So a hot key goes from one task to the next without a pause, by the line of the lock. A newcomer does not
// wait beside tasks that are deferred, which it would overtake for ever. A task comes back in time for its deadline, and then
// each second: see delay.
//
// asynq puts a task back if its handler returns an error that is not a failure. But first it checks the retries, and
// archives a task that has none left, failure or not: see keep.
func (g *Guard) putBack(ctx context.Context, want wiring.Locks, t *asynq.Task, next asynq.Handler, busy error) error {
	r, now, lock := refOf(ctx, want.Share), time.Now(), g.name(want.Keys, lockOf(busy))
	ends, bounded := ctx.Deadline() // by its Timeout, too, asynq would count a failure
	mayWait := g.busy.wait < patience && (!bounded || ends.Sub(now) > patience+time.Second)
	if turn := (*turnError)(nil); errors.As(busy, &turn) {
		mayWait = mayWait && turn.active
	}
	rec, err := g.note(ctx, r, lock, now, mayWait)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return fmt.Errorf("asynqlock: task %s is not in this Redis: name asynq's by WithRedis: %w", r.id, err)
	}
	wait, leave, limit := time.Duration(0), func() {}, g.maxDeferral-now.Sub(rec.since)
	if s := serverOf(ctx); rec.waits && s.enter(lock, rec.woken) {
		wait, leave = patience, sync.OnceFunc(func() { s.leave(lock) })
	}
	if !rec.deadline.IsZero() {
		limit = min(limit, rec.deadline.Sub(now)-forwarding)
	}
	defer leave()
	if wait > 0 {
		ran, err := g.runSoon(ctx, want, wait, t, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			leave()
			return next.ProcessTask(ctx, t)
		}))
		leave()
		if ran || ctx.Err() != nil {
			return err
		}
		if lockOf(err) != "" {
			time.Sleep(settling)
		}
		busy = err
	}
	if now.Sub(rec.since) > g.maxDeferral {
		g.forget(ctx, r)
		g.tell(ctx, failedHook, Event{Task: t, Key: busyKey(want.Keys, busy), Since: rec.since, Err: busy})
		return g.decide(ctx, t, fmt.Errorf("asynqlock: %v since %s is too long: %w", g.maxDeferral, rec.since.UTC().Format(time.RFC3339), busy))
	}
	d := &DeferredError{Since: rec.since, failure: rec.failure}
	for i := range want.Keys {
		if i > 0 || wait > 0 || rec.waits {
			lock = g.name(want.Keys, lockOf(busy))
			rec, err = g.note(ctx, r, lock, d.Since, false)
		}
		if d.Delay = g.delay(busy, rec, now.Sub(d.Since), limit); err != nil || lock == "" || rec.ahead > 0 && wait == 0 {
			break
		}
		// The lock may have been released before its holder could find the note. So look again now that the note is there.
		// If others are noted in front of it, these do.
		ran, err := g.run(ctx, want, 0, false, t, next)
		if ran || ctx.Err() != nil {
			return err
		}
		if busy = err; g.name(want.Keys, lockOf(busy)) == lock {
			break
		}
	}
	d.Key, d.cause = busyKey(want.Keys, busy), busy
	if r.retried >= r.limit {
		if err := g.keep(ctx, r, d.Delay); err != nil {
			// This is a failure and not a deferral: asynq archives the task, and ErrorHandler should be called.
			return fmt.Errorf("asynqlock: cannot defer a task that has no retries left: %w", errors.Join(err, busy))
		}
	}
	g.tell(ctx, deferredHook, Event{Task: t, Key: d.Key, Since: d.Since, Delay: d.Delay, Err: busy})
	return d
}

// delay returns after how long a deferred task comes back by itself. It is at most limit, but at least 1 s.
//
// The first in line comes back soon, in case that the key is released by something that wakes no task, and ever more slowly,
// but not later than what is left of the holder's lease plus a random part. Those behind it are woken by those in front. They
// come back for the case that something goes wrong with that: one by one, and each the more rarely the longer it has been
// deferred, so that a long line costs little.
func (g *Guard) delay(busy error, rec record, deferred, limit time.Duration) time.Duration {
	d := unknownDelay
	var held *holdfast.HeldError
	if errors.As(busy, &held) && held.TimeLeft > 0 {
		d = held.TimeLeft
	}
	if turn := (*turnError)(nil); errors.As(busy, &turn) {
		d = mostBehind
	}
	d += rand.N(max(d/4, time.Second))
	switch {
	case rec.ahead > 0:
		d = max(leastBehind, deferred, time.Duration(rec.ahead)*perPlace)
		d += rand.N(d / 4)
	case rec.firsts > 0:
		d = min(d, time.Second<<min(rec.firsts-1, 20))
	}
	return min(d, g.maxDelay-rand.N(g.maxDelay/4), max(limit, time.Second))
}

// lockOf returns the lock that was found busy, by its name in Redis, with the Locker's prefix. It is empty if no holder is
// known.
func lockOf(busy error) string {
	var held *holdfast.HeldError
	if errors.As(busy, &held) {
		return held.Key
	}
	return ""
}
