package asynqlock

import (
	"context"
	_ "embed"
	"math/rand/v2"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// A deferred task is noted in Redis, under the lock that it found busy. The process that releases the lock, on whichever
// server, takes the note of the task that was deferred first, and has asynq run that task at once. This is a shortcut: a
// task without a note comes back after its delay. The woken task goes to the right end of its queue, where asynq takes tasks
// from. Behind a backlog it would come too late, and the key would be idle meanwhile.
//
// Tasks of several shares, see WithShare, take turns there as the waiters of a lock do: each share has its notes, which
// together have the order in which they are woken. A wake takes the first share's, and puts that share behind all others. So what
// a share has, or deletes, is no matter to the others.
//
// Each queue has its notes with its tasks, so that one script does all this, and so that a queue that is paused, however many
// notes it has, keeps them and leaves the turn to other queues. Which queues have notes is noted by lock.

//go:embed run.lua
var runText string

var runScript = redis.NewScript(asynqNames + runText)

// notesKey returns the key of the tasks of a queue and a share that were deferred for a lock. lock is its name in Redis, with the
// Locker's prefix.
func notesKey(lock, queue, share string) string {
	if share == "" {
		return "asynqlock:deferred:{" + queue + "}:" + lock
	}
	before, behind := aroundShare(lock, queue)
	return before + share + behind
}

// aroundShare returns what the key of a share's notes has before and behind the share, in which there is no "|".
func aroundShare(lock, queue string) (before, behind string) {
	return "asynqlock:share:{" + queue + "}:", "|" + lock
}

// sharesKey returns the key of the shares that have notes.
func sharesKey(lock, queue string) string { return "asynqlock:shares:{" + queue + "}:" + lock }

// queuesKey returns the key of the queues whose tasks were deferred for a lock.
func queuesKey(lock string) string { return "asynqlock:queues:" + lock }

const (
	// noteBound bounds the time to write a note, and the time to look for the next task.
	noteBound = time.Second

	// asynq puts a deferred task back only after the Guard has returned; until then the task cannot be woken. That takes
	// about a round trip. All pauses together are 255 ms.
	wakeTries  = 9
	firstPause = time.Millisecond

	notYet = -1 // see run.lua and keep.lua

	// archiving bounds how long asynq tries to archive a task: until it would take the worker for dead, and a little longer.
	archiving = 35 * time.Second

	// settling is a pause for what a waiter leaves behind. The waiter may have been granted the key at the very moment it
	// stopped waiting, and then gives it back without waking anybody. The look that follows the pause finds the key free.
	settling = 20 * time.Millisecond

	// The first task that is left in line looks by itself soon, in case that the turn of the one that was woken gets lost. Of a
	// lease of 15 s, that is about when a dead holder's ends.
	leastLook, mostLook = 15 * time.Second, 20 * time.Second

	// furthest is how many of the most recently enqueued tasks are searched for one that has come back on its own. That
	// takes about 100 µs of Redis.
	furthest = 10_000
)

// fill wakes one more task if others may hold lock beside the one that begins to run, whose keys are given. A run that ends
// wakes one for its own place only, so a place that was lost, or that a request had, would stay free. The note of a task that
// runs goes first: it would keep each release looking for 255 ms.
func (g *Guard) fill(ctx context.Context, lock *holdfast.Lock, keys []string, r taskRef) {
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	g.runNext(ctx, lock.Key(), r.queue, r, 0)
	for state, err := range g.locker.InspectAll(ctx, keys...) {
		if err == nil && state.Key == lock.Key() && state.Holders < lock.Limit() {
			g.wake(ctx, lock.Key(), r, 1)
		}
	}
}

// wake has asynq run next the n tasks that were deferred first for lock, of a queue that is drawn by lot, or of the next one if
// that has too few. ran is the task that ran under lock, if one did.
func (g *Guard) wake(ctx context.Context, lock string, ran taskRef, n int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
	defer cancel()
	queues, err := g.redis.SMembers(ctx, queuesKey(lock)).Result()
	if err != nil {
		return
	}
	rand.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
	for _, queue := range queues {
		own := taskRef{}
		if queue == ran.queue {
			own = ran
		}
		if n -= g.runNext(ctx, lock, queue, own, n); n <= 0 {
			return
		}
	}
}

// runNext has asynq run the next n tasks of a queue, and returns how many are about to run. The note of own goes.
func (g *Guard) runNext(ctx context.Context, lock, queue string, own taskRef, n int) int {
	keys := []string{notesKey(lock, queue, ""), pendingKey(queue), retryKey(queue), archivedKey(queue), pausedKey(queue), sharesKey(lock, queue)}
	before, behind := aroundShare(lock, queue)
	for pause := firstPause; ; pause *= 2 {
		now := time.Now()
		look := now.Add(leastLook + rand.N(mostLook-leastLook)).Unix()
		woken, err := 0, error(nil)
		if g.ordered {
			woken, err = g.runFirst(ctx, lock, queue, own, n)
		} else {
			woken, err = runScript.Run(ctx, g.redis, keys, taskPrefix(queue), now.UnixNano(), n, furthest, own.id, look, own.share, before, behind).Int()
		}
		if err != nil || woken != notYet || pause >= firstPause<<(wakeTries-1) {
			return max(woken, 0)
		}
		time.Sleep(pause)
	}
}
