package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

const (
	jobReplicas = 5
	jobSpec     = "*/2 * * * * *" // every other second, for a job of one second
)

// jobs runs five replicas that have the same cron job, plain and with cronlock, and shows which replica ran which tick.
func jobs(ctx context.Context, st *stage, a act) (res *result, err error) {
	d := &diary{plain: map[time.Time]int{}, once: map[time.Time][]string{}, want: st.size.jobs, full: make(chan struct{})}
	for i := range jobReplicas {
		stop, err := startCron(st, fmt.Sprintf("replica-%d", i+1), d)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, shop.AtEnd(ctx, stop)) }()
		if err := shop.Sleep(ctx, skew/4); err != nil {
			return nil, err
		}
	}
	select {
	case <-d.full:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res = &result{act: a}
	var ticks []time.Time
	for tick := range d.once {
		ticks = append(ticks, tick)
	}
	slices.SortFunc(ticks, time.Time.Compare)
	fmt.Fprintf(st.out, "\n   %-10s %-20s %s\n", "tick", "with cronlock", "plain")
	for _, tick := range ticks {
		ran := d.once[tick]
		fmt.Fprintf(st.out, "   %-10s %-20s %d replicas\n", tick.Format(time.TimeOnly), fmt.Sprint(ran), d.plain[tick])
		if len(ran) != 1 {
			res.broken = append(res.broken, fmt.Sprintf("tick %s ran on %v", tick.Format(time.TimeOnly), ran))
		}
	}
	res.summary = fmt.Sprintf("%d ticks on %d replicas: with cronlock each ran on one.", len(ticks), jobReplicas)
	return res, nil
}

// diary records who ran which tick.
type diary struct {
	mu    sync.Mutex
	plain map[time.Time]int
	once  map[time.Time][]string
	ended int
	want  int
	full  chan struct{} // closed when want runs have ended
}

// startCron starts a replica, which stands for a process of its own.
func startCron(st *stage, name string, d *diary) (stop func(context.Context) error, err error) {
	client := redis.NewClient(st.Redis)
	locker, err := holdfast.New(client, holdfast.WithPrefix(st.Prefix+":"), holdfast.WithLabel(name))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	c := cron.New(cron.WithSeconds())
	guard := cronlock.New(locker, c)
	stop = func(ctx context.Context) error {
		return errors.Join(guard.Stop(ctx), locker.Shutdown(ctx), client.Close())
	}
	_, err = guard.AddFunc(jobSpec, "report", func(ctx context.Context) error {
		d.mu.Lock()
		_, tick, _ := cronlock.Tick(ctx)
		d.once[tick] = append(d.once[tick], name)
		d.mu.Unlock()
		err := shop.Sleep(ctx, time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.ended++; d.ended == d.want {
			close(d.full)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, stop(context.Background()))
	}
	var plain cron.EntryID
	plain, err = c.AddFunc(jobSpec, func() {
		tick := c.Entry(plain).Prev
		d.mu.Lock()
		defer d.mu.Unlock()
		d.plain[tick]++
	})
	if err != nil {
		return nil, errors.Join(err, stop(context.Background()))
	}
	c.Start()
	return stop, nil
}
