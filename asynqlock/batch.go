package asynqlock

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// batch sends the commands of many tasks together: while one pipeline is under way, the next commands gather for another one. A task
// under WithOrder asks Redis twice more than asynq and the lock do, and that on each worker. Alone, each of these would be a write and a
// read here and in Redis.
type batch struct {
	redis redis.UniversalClient

	mu      sync.Mutex
	waiting []*question
	sending bool
}

type question struct {
	ask  func(redis.Pipeliner)
	done chan struct{}
}

// send returns when Redis has answered what ask puts into a pipeline, at most noteBound and a pipeline before it later, or when ctx ends.
func (b *batch) send(ctx context.Context, ask func(redis.Pipeliner)) error {
	q := &question{ask, make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, q)
	if !b.sending {
		b.sending = true
		go b.sendAll()
	}
	b.mu.Unlock()
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *batch) sendAll() {
	for {
		b.mu.Lock()
		all := b.waiting
		b.waiting = nil
		b.sending = len(all) > 0
		b.mu.Unlock()
		if len(all) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), noteBound)
		_, _ = b.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, q := range all {
				q.ask(p)
			}
			return nil
		}) // each command has its own error
		cancel()
		for _, q := range all {
			close(q.done)
		}
	}
}
