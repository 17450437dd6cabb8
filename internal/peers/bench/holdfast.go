package main

import (
	"context"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// sentByHoldfast includes what go-redis sends for subscriptions.
var sentByHoldfast = []string{"evalsha", "eval", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping"}

// withoutLocalLine has each hand-over go through Redis, also within one process.
var withoutLocalLine = holdfast.WithLocalHandover(0, 0)

type ours struct {
	locker *holdfast.Locker
	rdb    *redis.Client
	opts   []holdfast.CallOption
}

func openHoldfast(opts ...holdfast.Option) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) {
		locker, err := holdfast.New(t.rdb, append([]holdfast.Option{holdfast.WithTTL(lease)}, opts...)...)
		return ours{locker, t.rdb, nil}, err
	}
}

func (o ours) try(ctx context.Context, key string) (held, error) {
	return found(o.locker.TryAcquire(ctx, key, o.opts...))
}

func (o ours) acquire(ctx context.Context, key string) (held, error) {
	return found(o.locker.Acquire(ctx, key, o.opts...))
}

// found keeps a nil of lock's own type out of the interface.
func found[L held](lock L, err error) (held, error) {
	if err != nil {
		return nil, err
	}
	return lock, nil
}

func (o ours) ping(ctx context.Context) error { return o.rdb.Ping(ctx).Err() }

func (o ours) close() error { return shutDown(o.locker) }

func shutDown(l *holdfast.Locker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return l.Shutdown(ctx)
}
