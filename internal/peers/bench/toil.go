//go:build !without_asynq

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// taskFlag as the first argument makes this program a process with an asynq server.
const taskFlag = "-tasks"

func init() { children[taskFlag] = serveTasks }

// job is the payload of a task.
type job struct {
	Account string        `json:"account_id"`
	N       int           `json:"n"` // of the tasks in the order in which they are enqueued
	Takes   time.Duration `json:"takes"`
}

// stint is a run of a task.
type stint struct {
	N            int
	Began, Ended int64
}

// toil is what one process did.
type toil struct {
	Stints    []stint
	Deferrals int
}

// serveTasks is the whole life of such a process: it says in a line on out when its server runs, ends that once in has ended,
// and writes what it did.
func serveTasks(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(taskFlag, flag.ContinueOnError)
	addr := flags.String("addr", "", "")
	guarded := flags.Bool("guarded", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var done toil
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"), asynqlock.WithTrace(&asynqlock.Trace{
		Deferred: func(context.Context, asynqlock.Event) {
			mu.Lock()
			defer mu.Unlock()
			done.Deferrals++
		},
	}))
	var handler asynq.Handler = asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		began := now()
		var j job
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		time.Sleep(j.Takes)
		mu.Lock()
		defer mu.Unlock()
		done.Stints = append(done.Stints, stint{j.N, began, now()})
		return nil
	})
	cfg := guard.Config(asynq.Config{Concurrency: 10}) // README has it so
	cfg.LogLevel = asynq.WarnLevel
	servers := []*asynq.Server{asynq.NewServerFromRedisClient(rdb, cfg)}
	if *guarded {
		handler = guard.Wrap(handler)
	} else {
		cfg.Concurrency, cfg.Queues = 1, map[string]int{ownQueue: 1}
		servers = append(servers, asynq.NewServerFromRedisClient(rdb, cfg))
	}
	for _, s := range servers {
		if err := s.Start(handler); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	for _, s := range servers {
		s.Shutdown()
	}
	if err := shutDown(locker); err != nil {
		return err
	}
	mu.Lock() // a handler may have outlived the server
	defer mu.Unlock()
	return json.NewEncoder(out).Encode(done)
}

// desk is where tasks come from.
type desk struct {
	client    *asynq.Client
	inspector *asynq.Inspector
	sent      []int64 // when each task was enqueued
}

func (d *desk) enqueue(ctx context.Context, queue, account string, takes time.Duration) (id string, err error) {
	payload, err := json.Marshal(job{account, len(d.sent), takes})
	if err != nil {
		return "", err
	}
	d.sent = append(d.sent, now())
	info, err := d.client.EnqueueContext(ctx, asynq.NewTask("payout", payload), asynq.Queue(queue))
	if err != nil {
		return "", err
	}
	return info.ID, nil
}

// pending reports whether no server has found the task.
func (d *desk) pending(id string) bool {
	info, err := d.inspector.GetTaskInfo("default", id)
	return err == nil && info.State == asynq.TaskStatePending
}

// left returns how many tasks asynq has, in whatever state.
func (d *desk) left() (n int, err error) {
	queues, err := d.inspector.Queues()
	if err != nil {
		return 0, err
	}
	for _, q := range queues {
		info, err := d.inspector.GetQueueInfo(q)
		if err != nil {
			return 0, err
		}
		n += info.Size
	}
	return n, nil
}
