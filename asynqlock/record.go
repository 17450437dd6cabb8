package asynqlock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// A deferral adds a field to asynq's hash of the task: since when it is deferred, after how many retries, and what its
// handler failed with before. The field is deleted with the hash. When the handler fails, the deferral ends, and the next
// one counts anew.

const (
	stateField = "holdfast"
	wokenField = "holdfast:woken"
)

//go:embed defer.lua
var deferText string

//go:embed handon.lua
var handOnText string

var (
	deferScript  = redis.NewScript(deferText)
	handOnScript = redis.NewScript(handOnText)
)

// taskRef says which task a run is of, as its context has it. Without a server it has no ID.
type taskRef struct {
	queue, id      string
	retried, limit int
}

func refOf(ctx context.Context) (r taskRef) {
	r.id, _ = asynq.GetTaskID(ctx)
	r.queue, _ = asynq.GetQueueName(ctx)
	r.retried, _ = asynq.GetRetryCount(ctx)
	r.limit, _ = asynq.GetMaxRetry(ctx)
	return r
}

// These are asynq's keys. Their hash tag is the queue.
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }
func pendingKey(queue string) string  { return "asynq:{" + queue + "}:pending" }
func retryKey(queue string) string    { return "asynq:{" + queue + "}:retry" }

// record is what Redis stores about a task that runs.
type record struct {
	message
	unique  string    // the key that Unique has locked
	since   time.Time // of the first deferral, if goesOn
	goesOn  bool      // the deferral has not ended since
	failure string    // what the handler failed with before
	woken   bool      // by a release, and not deferred since
}

// record reads a task. If it does not exist, the error is an asynq.ErrTaskNotFound.
func (g *Guard) record(ctx context.Context, r taskRef) (*record, error) {
	fields, err := g.redis.HMGet(ctx, taskKey(r.queue, r.id), "msg", "unique_key", stateField, wokenField).Result()
	if err != nil {
		return nil, err
	}
	raw, ok := fields[0].(string)
	if !ok {
		return nil, asynq.ErrTaskNotFound
	}
	rec := &record{}
	if rec.message, err = parseMessage([]byte(raw)); err != nil {
		return nil, err
	}
	rec.unique, _ = fields[1].(string)
	rec.failure = rec.text(errorField)
	state, _ := fields[2].(string)
	if since, failure, ok := parseState(state, r.retried); ok {
		rec.since, rec.failure, rec.goesOn = since, failure, true
	}
	rec.woken = fields[3] != nil
	return rec, nil
}

func formatState(since time.Time, retried int, failure string) string {
	return fmt.Sprintf("%d %d %s", since.UnixMilli(), retried, failure)
}

// parseState reads a state. ok is false if the task has failed since.
func parseState(state string, retried int) (since time.Time, failure string, ok bool) {
	first, rest, _ := strings.Cut(state, " ")
	second, failure, _ := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(first, 10, 64)
	if err != nil || second != strconv.Itoa(retried) {
		return time.Time{}, "", false
	}
	return time.UnixMilli(ms), failure, true
}

// remember stores this deferral for the next run. It tries once: if that fails, the next deferral counts anew, and the task
// is not woken.
func (g *Guard) remember(ctx context.Context, r taskRef, state string) bool {
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	n, err := deferScript.Run(ctx, g.redis, []string{taskKey(r.queue, r.id)}, state).Int()
	return err == nil && n == 1
}

// forget ends the deferral of a task, because its handler has failed.
func (g *Guard) forget(ctx context.Context, r taskRef) {
	if r.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
	defer cancel()
	_ = g.redis.HDel(ctx, taskKey(r.queue, r.id), stateField, wokenField).Err()
}

// put replaces a task that has no retries left with a new task of the same content. It keeps trying for as long as asynq
// waits for the outcome, because asynq archives the task if put returns an error.
func (g *Guard) put(ctx context.Context, r taskRef, rec *record, successor, origin string, d *DeferredError) (err error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		if rec == nil {
			if rec, err = g.record(ctx, r); errors.Is(err, asynq.ErrTaskNotFound) {
				return err // Redis has lost it in the meantime
			}
		}
		if rec != nil {
			unique := rec.unique
			if unique == "" {
				unique = taskKey(r.queue, r.id) // Cluster needs some key in the same slot
			}
			keys := []string{taskKey(r.queue, r.id), taskKey(r.queue, successor), retryKey(r.queue), unique}
			var n int
			n, err = handOnScript.Run(ctx, g.redis, keys, r.id, successor, rec.successor(successor, origin, d.Error()),
				time.Now().Add(d.Delay).Unix(), formatState(d.Since, r.retried, d.failure)).Int()
			if err == nil && n == 0 {
				return asynq.ErrTaskNotFound
			}
			if err == nil {
				return nil
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
