//go:build !without_redislock

package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

func init() {
	register(peer{
		module: peers["without_redislock"],
		rivals: []rival{
			{"redislock (4–16 ms)", goRedis, sentByScripts, openRedislock(growing)},
			{"redislock (1 ms)", goRedis, sentByScripts, openRedislock(every(time.Millisecond))},
			{"redislock (100 ms)", goRedis, sentByScripts, openRedislock(every(100 * time.Millisecond))},
		},
		soloists: []rival{{"redislock", goRedis, sentByScripts, openRedislock(never)}},
	})
}

// redisLock is github.com/bsm/redislock.
type redisLock struct {
	client *redislock.Client
	rdb    *redis.Client
	retry  func() redislock.RetryStrategy // counts, so each call needs its own
}

var (
	// never is redislock's default.
	never = redislock.NoRetry
	// growing is pauses of 4, 8 and from then on 16 ms.
	growing = func() redislock.RetryStrategy { return redislock.ExponentialBackoff(0, lookLate) }
)

// every is the strategy of redislock's README, there with 100 ms and an end after 3 tries.
func every(pause time.Duration) func() redislock.RetryStrategy {
	return func() redislock.RetryStrategy { return redislock.LinearBackoff(pause) }
}

func openRedislock(retry func() redislock.RetryStrategy) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) { return redisLock{redislock.New(t.rdb), t.rdb, retry}, nil }
}

func (l redisLock) try(ctx context.Context, key string) (held, error) {
	return found(l.client.Obtain(ctx, key, lease, nil))
}

// acquire is for a ctx with a deadline; without one it would end after the lease.
func (l redisLock) acquire(ctx context.Context, key string) (held, error) {
	return found(l.client.Obtain(ctx, key, lease, &redislock.Options{RetryStrategy: l.retry()}))
}

func (l redisLock) ping(ctx context.Context) error { return l.rdb.Ping(ctx).Err() }
func (l redisLock) close() error                   { return nil }
