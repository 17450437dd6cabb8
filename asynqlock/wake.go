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
// its delay is over. A note is good until then, and no longer: afterwards the task may be waiting for a retry of its
// handler's, which is nobody else's business. So each note has its end in it, by the clock of Redis, and the set of them
// expires with the last.

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

const (
	// noteBound is how long a note may take, and a look for the next.
	noteBound = time.Second

	// asynq puts a deferred task back only after the Guard has let go of it; until then it cannot be woken. That is a
	// matter of a round trip: all pauses together are 255 ms.
	wakeTries      = 9
	firstWakePause = time.Millisecond
)

// note has the next release of the lock wake the task that found it busy. It returns what forgetNote takes.
func (g *Guard) note(ctx context.Context, busy error, queue, id string, d *DeferredError) (noted string) {
	var held *core.HeldError
	if !errors.As(busy, &held) {
		return "" // nobody has it, as far as one can see
	}
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	noted, _ = noteScript.Run(ctx, g.redis, notes(held.Key), d.Delay.Milliseconds(), d.Since.UnixMilli(), queue+"\x00"+id).Text()
	return noted
}

// forgetNote is for a task that runs after all.
func (g *Guard) forgetNote(ctx context.Context, lock, noted string) {
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	_ = g.redis.ZRem(ctx, notes(lock)[0], noted).Err()
}

// wake has asynq run the next task that gave way to lock.
func (g *Guard) wake(ctx context.Context, lock string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
	defer cancel()
	for {
		task, err := nextScript.Run(ctx, g.redis, notes(lock)).Text()
		queue, id, ok := strings.Cut(task, "\x00")
		if err != nil || !ok {
			return // redis.Nil: there is none
		}
		pause := firstWakePause
		for range wakeTries {
			if err = g.inspector.RunTask(queue, id); err == nil {
				return
			}
			if errors.Is(err, asynq.ErrTaskNotFound) {
				break
			}
			time.Sleep(pause)
			pause *= 2
		}
	}
}
