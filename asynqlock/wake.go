package asynqlock

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// A deferred task is noted in Redis, by the lock that it gave way to, so that whoever releases the lock, on whichever
// server, has the one that was deferred first run at once. It is a short cut: a task that is not noted comes back when
// its delay is over. A note may outlive what it says: the task may have come back by itself since and have run, wait for
// a retry of its handler's, or have been archived by hand, and asynq would run it again from any of these states. So
// who takes a note looks at the task first. There is one note for a task, and the set of them expires.

//go:embed note.lua
var noteText string

//go:embed next.lua
var nextText string

var (
	noteScript = redis.NewScript(noteText)
	nextScript = redis.NewScript(nextText)
)

// notes is the key of those that gave way to a lock; lock is its name in Redis, which has the Locker's prefix.
func notes(lock string) []string { return []string{"asynqlock:deferred:" + lock} }

// noteOf is what the notes have of a task.
func noteOf(queue, id string) string { return queue + "\x00" + id }

const (
	// noteBound is how long a note may take, and a look for the next.
	noteBound = time.Second

	// asynq puts a deferred task back only after the Guard has let go of it; until then it cannot be woken. That is a
	// matter of a round trip: all pauses together are 255 ms.
	wakeTries      = 9
	firstWakePause = time.Millisecond
)

// note has the next release of the lock wake the task that found it busy, and reports whether that is written.
func (g *Guard) note(ctx context.Context, busy error, queue, id string, d *DeferredError) bool {
	var held *core.HeldError
	if !errors.As(busy, &held) {
		return false // nobody has it, as far as one can see
	}
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	good := d.Delay + forwarding
	err := noteScript.Run(ctx, g.redis, notes(held.Key), good.Milliseconds(), d.Since.UnixMilli(), noteOf(queue, id)).Err()
	return err == nil
}

// wake has asynq run the next task that gave way to lock. ran is the note of the one that ran under it, if one did.
func (g *Guard) wake(ctx context.Context, lock, ran string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
	defer cancel()
	for {
		task, err := nextScript.Run(ctx, g.redis, notes(lock), ran).Text()
		queue, id, ok := strings.Cut(task, "\x00")
		if err != nil || !ok || g.runNow(ctx, queue, id) {
			return // redis.Nil: there is none
		}
	}
}

// runNow reports whether the task is about to run.
func (g *Guard) runNow(ctx context.Context, queue, id string) bool {
	pause := firstWakePause
	for range wakeTries {
		info, err := g.info(ctx, queue, id)
		if err != nil {
			return false
		}
		switch {
		case info.State == asynq.TaskStatePending:
			return true // it has come back by itself
		case info.State == asynq.TaskStateActive:
			time.Sleep(pause)
			pause *= 2
		case !isDeferred(info):
			return false
		case g.inspector.RunTask(queue, id) == nil:
			return true
		}
	}
	return false
}

// isDeferred reports whether a task waits because its key was busy, and for nothing else.
func isDeferred(info *asynq.TaskInfo) bool {
	switch info.State {
	case asynq.TaskStateScheduled:
		return info.Headers[originHeader] != ""
	case asynq.TaskStateRetry:
		return strings.Contains(info.LastErr, deferredText)
	}
	return false
}
