package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// skew is the time between the starts of two replicas.
const skew = 300 * time.Millisecond

// ticks runs three replicas that each enqueue a task every second with asynq's scheduler, and another with holdfast's, and
// counts the runs of both.
func ticks(ctx context.Context, st *stage, a act) (res *result, err error) {
	q := openQueue(st, a)
	defer func() { err = errors.Join(err, q.close(ctx)) }()
	locker, err := holdfast.New(q.client, holdfast.WithPrefix(st.Prefix+":"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shop.AtEnd(ctx, locker.Shutdown)) }()

	var plain, once atomic.Int64
	count := func(n *atomic.Int64) func(context.Context, *asynq.Task) error {
		return func(context.Context, *asynq.Task) error {
			n.Add(1)
			return nil
		}
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc("plain", count(&plain))
	mux.HandleFunc("once", count(&once))
	server := asynq.NewServerFromRedisClient(q.client, asynq.Config{
		Queues: map[string]int{q.name: 1}, TaskCheckInterval: 20 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	defer server.Shutdown()

	// Start at the beginning of a second, so that all have started before the first tick.
	if err := shop.Sleep(ctx, time.Until(time.Now().Truncate(time.Second).Add(time.Second+50*time.Millisecond))); err != nil {
		return nil, err
	}
	seen := &calendar{ticks: map[time.Time]int{}, want: st.size.ticks, full: make(chan struct{})}
	var stops []func() error
	stop := func() (err error) {
		for _, s := range stops {
			err = errors.Join(err, s())
		}
		stops = nil
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for range 3 {
		theirs := asynq.NewSchedulerFromRedisClient(q.client, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
		if _, err := theirs.Register("@every 1s", asynq.NewTask("plain", nil), asynq.Queue(q.name)); err != nil {
			return nil, err
		}
		ours := asynqlock.NewScheduler(locker, asynqlock.WithTrace(seen.trace()))
		if err := ours.Register("@every 1s", "report", asynq.NewTask("once", nil), asynq.Queue(q.name)); err != nil {
			return nil, err
		}
		if err := theirs.Start(); err != nil {
			return nil, err
		}
		if err := ours.Start(); err != nil {
			return nil, err
		}
		stops = append(stops, func() error {
			theirs.Shutdown()
			ours.Shutdown()
			return nil
		})
		if err := shop.Sleep(ctx, skew); err != nil {
			return nil, err
		}
	}
	select {
	case <-seen.full:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := errors.Join(shop.Sleep(ctx, skew), stop(), q.drain(ctx)); err != nil {
		return nil, err
	}
	res = &result{act: a}
	n, missed := seen.enqueued, len(seen.ticks)-seen.enqueued
	for tick, times := range seen.ticks {
		if times > 1 {
			res.broken = append(res.broken, fmt.Sprintf("tick %s was enqueued %d times", tick.Format(time.TimeOnly), times))
		}
	}
	if once.Load() != int64(n) {
		res.broken = append(res.broken, fmt.Sprintf("%d runs for %d ticks", once.Load(), n))
	}
	res.summary = fmt.Sprintf("%d ticks: %d runs with asynq.Scheduler on each replica, %d with asynqlock.Scheduler.", n, plain.Load(), once.Load())
	if missed > 0 {
		res.summary += fmt.Sprintf(" %d more were missed: this machine was too busy for every replica.", missed)
	}
	return res, nil
}

// calendar records the ticks.
type calendar struct {
	mu       sync.Mutex
	ticks    map[time.Time]int // how often each was enqueued
	enqueued int               // how many ticks were enqueued at all
	want     int
	full     chan struct{} // closed when want ticks are enqueued
}

func (c *calendar) trace() *asynqlock.Trace {
	seen := func(_ context.Context, e asynqlock.Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ticks[e.Tick] += 0 // records the tick without counting it
	}
	return &asynqlock.Trace{Enqueued: c.enqueue, Elsewhere: seen, Missed: seen}
}

func (c *calendar) enqueue(_ context.Context, e asynqlock.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ticks[e.Tick]++; c.ticks[e.Tick] > 1 {
		return
	}
	if c.enqueued++; c.enqueued == c.want {
		close(c.full)
	}
}
