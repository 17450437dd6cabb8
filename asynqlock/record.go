package asynqlock

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// A deferral adds fields to asynq's hash of the task, which are deleted with the hash. When the handler fails, the deferral
// ends, and the next one counts anew.
const (
	stateField   = "holdfast"         // since when it is deferred, and after how many retries
	failureField = "holdfast:failure" // what its handler failed with before
	wokenField   = "holdfast:woken"   // a release has woken it, and it has not been deferred since
	firstsField  = "holdfast:firsts"  // how often it has been the first in line, and was not woken
	keptField    = "holdfast:kept"    // asynq is about to archive it, though it is only deferred: see keep.lua
	placeField   = "holdfast:place"   // its place in the order of its key: see order.lua
	turnField    = "holdfast:turn"    // see turn.lua
	untilField   = "holdfast:until"   // its deadline (Unix s): after that asynq fails it, and no Guard sees it
)

//go:embed defer.lua
var deferText string

//go:embed keep.lua
var keepText string

var (
	deferScript = redis.NewScript(asynqNames + deferText)
	keepScript  = redis.NewScript(asynqNames + keepText)
)

// taskRef says which task a run is of, as its context has it. Without a server it has no ID.
type taskRef struct {
	queue, id      string
	share          string // as in holdfast.WithShare, "" for none
	retried, limit int
}

func refOf(ctx context.Context, share string) (r taskRef) {
	r.share = share
	r.id, _ = asynq.GetTaskID(ctx)
	r.queue, _ = asynq.GetQueueName(ctx)
	r.retried, _ = asynq.GetRetryCount(ctx)
	r.limit, _ = asynq.GetMaxRetry(ctx)
	return r
}

func (r taskRef) key() string { return taskKey(r.queue, r.id) }

// record is what Redis knows about a task that found its key busy.
type record struct {
	deadline      time.Time // the zero Time if it has none
	since         time.Time // of the first deferral, or now
	failure       string    // what the handler failed with before
	waits, woken  bool      // it is to wait, and is not deferred
	ahead, firsts int64     // see defer.lua
}

// note records that the task is deferred, since the given time unless it was deferred before, and has the next release of
// lock wake it, unless lock is empty. If mayWait, it reports instead that the task is to wait, see defer.lua.
//
// It tries once: if that fails, the next deferral counts anew, and the task is not woken. If the task does not exist, the
// error is an asynq.ErrTaskNotFound.
func (g *Guard) note(ctx context.Context, r taskRef, lock string, since time.Time, mayWait bool) (record, error) {
	ctx, cancel := context.WithTimeout(ctx, noteBound)
	defer cancel()
	rec := record{since: since}
	keys, life := []string{r.key()}, g.maxDelay+forwarding
	if g.ordered {
		// Each one says it, and before: otherwise a task in front may have ended without a look.
		keys = append(keys, orderKey(lock, r.queue))
		if err := g.sayQueue(ctx, lock, r.queue); err != nil {
			return rec, err
		}
	} else if lock != "" {
		keys = append(keys, notesKey(lock, r.queue, r.share), sharesKey(lock, r.queue), notesKey(lock, r.queue, ""))
	}
	reply, err := deferScript.Run(ctx, g.redis, keys, r.id, since.UnixMilli(), r.retried, life.Milliseconds(), mayWait, r.share, g.ordered).Slice()
	if err == redis.Nil {
		err = asynq.ErrTaskNotFound
	}
	if err != nil {
		return rec, err
	}
	raw, _ := reply[0].(string)
	lastErr, deadline, err := readMessage([]byte(raw))
	if err != nil {
		return rec, err
	}
	if deadline > 0 {
		rec.deadline = time.Unix(deadline, 0)
		_ = g.redis.HSet(ctx, r.key(), untilField, deadline).Err()
	}
	number := func(i int) int64 { n, _ := reply[i].(int64); return n }
	rec.waits, rec.woken, rec.ahead, rec.firsts = number(3) > 0, number(3) == 2, number(4), number(5)
	if before, ok := reply[1].(string); ok {
		ms, _ := strconv.ParseInt(before, 10, 64)
		if first := time.UnixMilli(ms); first.Before(since) {
			rec.since = first
		}
		rec.failure, _ = reply[2].(string)
	} else if rec.failure = lastErr; lastErr != "" && !rec.waits {
		err = g.redis.HSet(ctx, r.key(), failureField, lastErr).Err()
	}
	if !g.ordered && (rec.firsts > 0 || number(6) == 1) { // the first one says it each time, in case that it went wrong before
		err = g.sayQueue(ctx, lock, r.queue)
	}
	return rec, err
}

// sayQueue notes that a queue has tasks that were deferred for lock.
func (g *Guard) sayQueue(ctx context.Context, lock, queue string) error {
	_, err := g.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, queuesKey(lock), queue)
		p.PExpire(ctx, queuesKey(lock), 2*(g.maxDelay+forwarding))
		return nil
	})
	return err
}

// forget ends the deferral of a task, because its handler has failed.
func (g *Guard) forget(ctx context.Context, r taskRef) {
	if r.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
	defer cancel()
	_ = g.redis.HDel(ctx, r.key(), stateField, failureField, wokenField, firstsField, keptField).Err()
}

// keep brings a task back that asynq archives because it has no retries left, though it is only deferred. It returns
// before asynq has done so. If this process is killed before the task is back, the task stays archived, and the next
// release of its key has it run.
//
// keep tries for as long as asynq waits for the outcome. If it returns an error, the task is archived and stays so. While
// the task is in the archive, asynq may drop the oldest ones of a full archive (10,000 tasks) a little earlier than it
// would.
func (g *Guard) keep(ctx context.Context, r taskRef, delay time.Duration) error {
	keys := []string{r.key(), archivedKey(r.queue), retryKey(r.queue)}
	due := time.Now().Add(delay).Unix()
	say := func(ctx context.Context, first int) (int, error) {
		return keepScript.Run(ctx, g.redis, keys, r.id, due, first).Int()
	}
	n, err := say(ctx, 1)
	for pause := 50 * time.Millisecond; err != nil; pause = min(2*pause, 2*time.Second) {
		if time.Sleep(pause); ctx.Err() != nil {
			return err
		}
		n, err = say(ctx, 1)
	}
	if n != notYet {
		return asynq.ErrTaskNotFound // Redis has lost it in the meantime
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), archiving)
		defer cancel()
		for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, time.Second) {
			time.Sleep(pause)
			if n, err := say(ctx, 0); err == nil && n != notYet {
				return
			}
		}
	}()
	return nil
}
