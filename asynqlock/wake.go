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

// A deferred task is noted in Redis, by the lock that it gave way to, so that the process that releases the lock, on
// whichever server, has the one that was deferred first run at once. It is a short cut: a task that is not noted comes back when
// its delay is over. asynq puts it at the right end of its queue, where tasks are taken from: behind a backlog it would come too
// late, and the key be idle meanwhile.
//
// A note may outlive what it says: the task may have come back by itself since and have run, wait for a retry of its
// handler's, or have been archived by hand, and asynq would run it again from any of these states. So the script that
// takes a note looks at the task first. There is one note for a task, and the set of them expires.

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

	notYet = 2 // see run.lua

	// wokenWait is how long a woken task waits for its key if another was quicker, before it gives way again: it would lose the
	// turn that it was given, and asynq have to look for the next when that other one ends.
	wokenWait = 100 * time.Millisecond

	// settling is the time for what a waiter leaves behind: it may have been granted the key at the very moment, and gives it
	// back, of which nobody hears. The look that follows does.
	settling = 20 * time.Millisecond

	// furthest is how many of the tasks that were enqueued last are looked through for one that has come back by itself: some
	// 100 µs of Redis.
	furthest = 10_000
)

// note has the next release of the lock wake the task that found it busy, and reports whether that is written.
func (g *Guard) note(ctx context.Context, busy error, queue, id string, d *DeferredError) bool {
	var held *holdfast.HeldError
	if !errors.As(busy, &held) {
		return false // nobody has it, as far as one can see
	}
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	good := d.Delay + forwarding
	err := noteScript.Run(ctx, g.redis, notes(held.Key), good.Milliseconds(), d.Since.UnixMilli(), noteOf(queue, id)).Err()
	return err == nil
}

// wake has asynq run the task next that gave way to lock first. ran is the note of the one that ran under it, if one did.
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
