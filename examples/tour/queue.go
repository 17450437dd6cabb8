package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// queue is an act's own asynq queue, which is removed afterwards.
type queue struct {
	name      string
	client    *redis.Client
	tasks     *asynq.Client
	inspector *asynq.Inspector
}

func openQueue(st *stage, a act) *queue {
	client := redis.NewClient(st.Redis)
	return &queue{
		name: st.Prefix + "_" + a.tables, client: client,
		tasks: asynq.NewClientFromRedisClient(client), inspector: asynq.NewInspectorFromRedisClient(client),
	}
}

// drain waits until everything has run.
func (q *queue) drain(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		info, err := q.inspector.GetQueueInfo(q.name)
		if err != nil {
			return err
		}
		if info.Archived > 0 {
			return fmt.Errorf("%d tasks failed", info.Archived)
		}
		if info.Size == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close removes the queue and everything that asynq keeps about it.
func (q *queue) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shop.Goodbye)
	defer cancel()
	err := q.inspector.DeleteQueue(q.name, true)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		err = nil // nothing was enqueued
	}
	// DeleteQueue leaves the queue's counts.
	counts := q.client.Scan(ctx, 0, "asynq:{"+q.name+"}:*", 1000).Iterator()
	for counts.Next(ctx) {
		err = errors.Join(err, q.client.Del(ctx, counts.Val()).Err())
	}
	return errors.Join(err, counts.Err(), q.client.Close())
}
