//go:build !without_asynq

package main

import (
	"context"
	"sync"
	"time"
)

func init() {
	controls["one-name-twice"] = control{polls, "the job had"}
	controls["behind-a-backlog"] = control{polls, "others ran before"}
}

// schedules claims a tick by its name alone.
func (b broken) schedules(ctx context.Context, name string, d time.Duration) (jobs, tasks int, err error) {
	var both sync.WaitGroup
	until := time.Now().Add(d)
	for _, n := range []*int{&jobs, &tasks} {
		both.Go(func() {
			for {
				tick := time.Now().Truncate(time.Second).Add(time.Second)
				if tick.After(until) {
					return
				}
				time.Sleep(time.Until(tick))
				if b.clients[0].SetNX(ctx, "tick:"+name+":"+tick.String(), 1, time.Minute).Val() {
					*n++
				}
			}
		})
	}
	both.Wait()
	return jobs, tasks, nil
}

// behind puts the tasks whose key was held at the end of the queue when it is free.
func (b broken) behind(ctx context.Context, hot, backlog int) (others int, err error) {
	queue := func(task string) { b.clients[0].LPush(ctx, "queue", task) }
	for range backlog {
		queue("other")
	}
	for range hot {
		queue(order)
	}
	for ran := 0; ran < hot; {
		task, err := b.clients[0].RPop(ctx, "queue").Result()
		switch {
		case err != nil:
			return 0, err
		case task == order:
			ran++
		default:
			others++
			queue(task) // the backlog stands
		}
	}
	return others, nil
}
