package asynqlock

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// A deferred task is noted in Redis, under the lock that it found busy. The process that releases the lock, on whichever
// server, takes the note of the task that was deferred first, and has asynq run that task at once. This is a shortcut: a
// task without a note comes back after its delay. The woken task goes to the right end of its queue, where asynq takes tasks
// from. Behind a backlog it would come too late, and the key would be idle meanwhile.
//
// A note can outlive its purpose. The task may have come back on its own and have run, may wait for a retry after its
// handler failed, or may have been archived by hand. asynq would run it again from any of these states, so the script that
// takes a note checks the task first. A set has one note of a task at most, and expires.

//go:embed note.lua
var noteText string

//go:embed next.lua
var nextText string

//go:embed run.lua
var runText string

var (
	noteScript = redis.NewScript(noteText)
	nextScript = redis.NewScript(nextText)
	runScript  = redis.NewScript(runText)
)

// notes returns the key of the tasks that were deferred for a lock. lock is its name in Redis, with the Locker's prefix.
func notes(lock string) []string { return []string{"asynqlock:deferred:" + lock} }

// noteOf returns the note of a task.
func noteOf(queue, id string) string { return queue + "\x00" + id }

const (
	// noteBound bounds the time to write a note, and the time to look for the next task.
	noteBound = time.Second

	// asynq puts a deferred task back only after the Guard has returned; until then the task cannot be woken. That takes
	// about a round trip. All pauses together are 255 ms.
	wakeTries      = 9
	firstWakePause = time.Millisecond

	notYet = 2 // see run.lua

	// wokenWait is how long a woken task waits for its key, if another task was quicker, before it is deferred again.
	// Without the wait it would lose its turn, and asynq would have to look for the next task when the other one ends.
	wokenWait = 100 * time.Millisecond

	// settling is a pause for what a waiter leaves behind. The waiter may have been granted the key at the very moment it
	// stopped waiting, and then gives it back without waking anybody. The look that follows the pause finds the key free.
	settling = 20 * time.Millisecond

	// furthest is how many of the most recently enqueued tasks are searched for one that has come back on its own. That
	// takes about 100 µs of Redis.
	furthest = 10_000
)

// note has the next release of the lock wake the task that found it busy. It reports whether the note was written.
func (g *Guard) note(ctx context.Context, busy error, queue, id string, d *DeferredError) bool {
	var held *holdfast.HeldError
	if !errors.As(busy, &held) {
		return false // no holder is known
	}
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	good := d.Delay + forwarding
	err := noteScript.Run(ctx, g.redis, notes(held.Key), good.Milliseconds(), d.Since.UnixMilli(), noteOf(queue, id)).Err()
	return err == nil
}

// wake has asynq run next the task that was deferred first for lock. ran is the note of the task that ran under it, if one
// did.
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
	keys := []string{taskKey(queue, id), pendingKey(queue), retryKey(queue)}
	for range wakeTries {
		n, err := runScript.Run(ctx, g.redis, keys, id, time.Now().UnixNano(), furthest).Int()
		if err != nil || n != notYet {
			return n == 1
		}
		time.Sleep(pause)
		pause *= 2
	}
	return false
}
