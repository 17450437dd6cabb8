//go:build !without_asynq

package main

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// adapted are the scenarios of what adapters do with the locks of a library.
var adapted = []scenario{
	{
		name:   "one-name-twice",
		wrong:  "A schedule of jobs and one of tasks have an entry of the same name, and each tick is claimed by its name: one of the two has it.",
		source: "https://github.com/lukas-krecan/ShedLock#annotate-your-scheduled-tasks",
		run:    oneNameTwice,
	},
	{
		name:   "behind-a-backlog",
		wrong:  "Tasks that found their lock held go to the end of the queue when it is free, and wait there for a backlog, with the lock idle.",
		source: "https://github.com/ixti/sidekiq-throttled/issues/122",
		run:    behindABacklog,
	},
}

func init() { scenarios = append(scenarios, adapted...) }

// scheduling is a library that runs each tick of a schedule once, wherever it is kept.
type scheduling interface {
	// schedules has a job and a task of that name, each due every second, for so long; it returns how often each was run.
	schedules(ctx context.Context, name string, d time.Duration) (jobs, tasks int, err error)
}

func oneNameTwice(b *bed) verdict {
	s := b.server()
	l, ok := b.open(settings{addrs: []string{s.Addr()}, lease: long}).(scheduling)
	if !ok {
		return verdict{noMatch, "it has no schedules"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	const ticks = 5
	jobs, tasks, err := l.schedules(ctx, "invoices", ticks*time.Second+500*time.Millisecond)
	if err != nil {
		b.Fatalf("%v", err)
	}
	if jobs+tasks <= ticks+1 {
		return fail("of %d ticks the job had %d and the task %d", ticks, jobs, tasks)
	}
	if min(jobs, tasks) < ticks-1 {
		b.Fatalf("the job ran %d times and the task %d times in %d s", jobs, tasks, ticks)
	}
	return pass("of %d ticks the job had %d and the task %d", ticks, jobs, tasks)
}

// working is a library that keeps tasks of one key from running at the same time.
type working interface {
	// behind has that many tasks of one key give way to one that holds it, and then a backlog of others enqueued, which stands
	// until those have run, for two workers. It returns how many of the others ran between the end of the holder and theirs.
	behind(ctx context.Context, hot, backlog int) (others int, err error)
}

func behindABacklog(b *bed) verdict {
	s := b.server()
	l, ok := b.open(settings{addrs: []string{s.Addr()}, lease: long}).(working)
	if !ok {
		return verdict{noMatch, "it has no tasks"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	const hot, backlog = 5, 200
	others, err := l.behind(ctx, hot, backlog)
	if err != nil {
		b.Fatalf("%v", err)
	}
	if others >= backlog/2 {
		return fail("%d others ran before the %d tasks whose key was free", others, hot)
	}
	return pass("%d others ran beside the %d tasks whose key was free", others, hot)
}

func (o ours) schedules(ctx context.Context, name string, d time.Duration) (int, int, error) {
	var jobs, tasks atomic.Int64
	c := cron.New()
	guard := cronlock.New(o.locker, c)
	if _, err := guard.AddFunc("@every 1s", name, func(context.Context) error { jobs.Add(1); return nil }); err != nil {
		return 0, 0, err
	}
	scheduler := asynqlock.NewScheduler(o.locker, asynqlock.WithTrace(&asynqlock.Trace{
		Enqueued: func(context.Context, asynqlock.Event) { tasks.Add(1) },
	}))
	if err := scheduler.Register("@every 1s", name, asynq.NewTask(name, nil)); err != nil {
		return 0, 0, err
	}
	c.Start()
	if err := scheduler.Start(); err != nil {
		return 0, 0, err
	}
	time.Sleep(d)
	scheduler.Shutdown()
	if err := guard.Stop(ctx); err != nil {
		return 0, 0, err
	}
	return int(jobs.Load()), int(tasks.Load()), nil
}

// work is a task of an order.
func work(order string) *asynq.Task {
	payload, _ := json.Marshal(map[string]string{"order": order}) // strings can be marshalled
	return asynq.NewTask("work", payload)
}

func (o ours) behind(ctx context.Context, hot, backlog int) (int, error) {
	rdb := redis.NewClient(o.clients[0].Options())
	defer rdb.Close()
	queue := asynq.NewClientFromRedisClient(rdb)
	var mu sync.Mutex // guards what follows
	gaveWay, ran, others, freed := 0, 0, 0, false
	release, done, started := make(chan struct{}), make(chan struct{}), make(chan struct{})
	count := func(n *int) int {
		mu.Lock()
		defer mu.Unlock()
		return *n
	}
	guard := asynqlock.New(o.locker, "order", asynqlock.Field("order"), asynqlock.WithTrace(&asynqlock.Trace{
		Deferred: func(context.Context, asynqlock.Event) {
			mu.Lock()
			defer mu.Unlock()
			gaveWay++
		},
	}))
	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{LogLevel: asynq.FatalLevel, Concurrency: 2}))
	mux := asynq.NewServeMux()
	mux.Use(guard.Wrap)
	mux.HandleFunc("work", func(ctx context.Context, t *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "holder" {
			close(started)
			<-release
			return nil
		}
		time.Sleep(5 * time.Millisecond)
		var of struct{ Order string }
		if err := json.Unmarshal(t.Payload(), &of); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if of.Order == order {
			if ran++; ran == hot {
				close(done)
			}
			return nil
		}
		if freed && ran < hot {
			others++
		}
		if ran == hot {
			return nil
		}
		_, err := queue.EnqueueContext(context.WithoutCancel(ctx), work(time.Now().String())) // the backlog stands
		return err
	})
	if err := server.Start(mux); err != nil {
		return 0, err
	}
	defer server.Shutdown()
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	if _, err := queue.EnqueueContext(ctx, work(order), asynq.TaskID("holder")); err != nil {
		return 0, err
	}
	select {
	case <-started:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for range hot {
		if _, err := queue.EnqueueContext(ctx, work(order)); err != nil {
			return 0, err
		}
	}
	for count(&gaveWay) < hot {
		if time.Sleep(5 * time.Millisecond); ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	for i := range backlog {
		if _, err := queue.EnqueueContext(ctx, work(time.Unix(int64(i), 0).String())); err != nil {
			return 0, err
		}
	}
	mu.Lock()
	freed = true
	mu.Unlock()
	free()
	select {
	case <-done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return count(&others), nil
}
