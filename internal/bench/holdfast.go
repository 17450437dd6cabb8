package main

import (
	"context"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// sentByHoldfast includes what go-redis sends for subscriptions.
var sentByHoldfast = []string{"evalsha", "eval", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping"}

// withoutLocalLine is the options under which each hand-over goes through Redis, also within one process.
var withoutLocalLine = func() []holdfast.Option { return []holdfast.Option{holdfast.WithLocalHandover(0, 0)} }

type ours struct {
	locker *holdfast.Locker
	rdb    *redis.Client
}

func openHoldfast(t *target) (contender, error) { return newOurs(t) }

func openWaiting(options func() []holdfast.Option) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) {
		if options == nil {
			return newOurs(t)
		}
		return newOurs(t, options()...)
	}
}

func newOurs(t *target, opts ...holdfast.Option) (ours, error) {
	locker, err := holdfast.New(t.rdb, append(opts, holdfast.WithTTL(lease))...)
	return ours{locker, t.rdb}, err
}

func (o ours) cycle(ctx context.Context, key string) error {
	lock, err := o.locker.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func (o ours) acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	lock, err := o.locker.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func (o ours) ping(ctx context.Context) error { return o.rdb.Ping(ctx).Err() }

func (o ours) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return o.locker.Shutdown(ctx)
}
