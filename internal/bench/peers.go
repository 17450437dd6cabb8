package main

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// peers are the modules that the other rivals come from.
var peers = []string{"github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/redis/rueidis"}

// The peers are set up for a hot key as well as they allow: of the settings tried, those with the most hand-overs
// over all tables. Two poll, with pauses that grow from a few ms to 16 on average. Shorter ones keep the server so
// busy among hundreds of waiters that releases come late; longer ones leave the key to whoever had it last.
const lookLate = 16 * time.Millisecond

// redisLock is github.com/bsm/redislock.
type redisLock struct {
	client *redislock.Client
	rdb    *redis.Client
}

func openRedislock(t *target) (waiter, error) { return redisLock{redislock.New(t.rdb), t.rdb}, nil }

// acquire uses ExponentialBackoff, with pauses of 4, 8 and from then on 16 ms. By default redislock does not wait.
// LinearBackoff of 1 ms has twice as many hand-overs among 16 goroutines, but a tenth among 256; of 10 ms about
// half everywhere. A ctx without a deadline would end after the lease.
func (l redisLock) acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	retry := redislock.ExponentialBackoff(0, lookLate) // counts, so each call needs its own
	lock, err := l.client.Obtain(ctx, key, lease, &redislock.Options{RetryStrategy: retry})
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func (l redisLock) ping(ctx context.Context) error { return l.rdb.Ping(ctx).Err() }
func (l redisLock) close() error                   { return nil }

// redSync is github.com/go-redsync/redsync.
type redSync struct {
	sync    *redsync.Redsync
	rdb     *redis.Client
	options []redsync.Option
}

// openRedsync lets it try for as long as the context lasts, after random pauses of 1 ms and up to 4, 8, 16 and then
// always 32 ms more. By default it gives up after 32 tries, with pauses of 50 to 250 ms: less than a tenth of the
// hand-overs.
func openRedsync(t *target) (waiter, error) {
	pause := func(try int) time.Duration {
		return time.Millisecond + rand.N(min(2*lookLate, 2*time.Millisecond<<min(try, 10)))
	}
	return redSync{redsync.New(goredis.NewPool(t.rdb)), t.rdb, []redsync.Option{
		redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt), redsync.WithRetryDelayFunc(pause),
	}}, nil
}

func (l redSync) acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	mutex := l.sync.NewMutex(key, l.options...) // keeps the value of one holder
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := mutex.UnlockContext(ctx) // false always comes with an error
		return err
	}, nil
}

func (l redSync) ping(ctx context.Context) error { return l.rdb.Ping(ctx).Err() }
func (l redSync) close() error                   { return nil }

// rueidisLock is github.com/redis/rueidis/rueidislock, which waits for Redis' client-side caching to say that
// the key has changed.
type rueidisLock struct{ locker rueidislock.Locker }

// openRueidislock sets it up for one Redis. NoLoopTracking, which its documentation recommends, has a fifth to
// a half of the hand-overs within one process and as many among Lockers. TryNextAfter is how long a look may take before it
// goes on to the next key: with one key there is none, and on a loaded machine the default of 20 ms would
// give up looks that are about to succeed.
func openRueidislock(t *target) (waiter, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{t.addr}},
		KeyMajority:  1,
		KeyValidity:  lease,
		TryNextAfter: time.Second,
	})
	return rueidisLock{locker}, err
}

// acquire gives the lock a context of its own, since rueidislock frees a lock when the context ends that it was
// acquired with.
func (l rueidisLock) acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	_, unlock, err := l.locker.WithContext(own, key)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	release := func(context.Context) error {
		unlock() // waits for the answer, and keeps it to itself
		cancel()
		return nil
	}
	if !stop() { // cancelled, so that the lock is gone or about to
		_ = release(ctx)
		return nil, ctx.Err()
	}
	return release, nil
}

func (l rueidisLock) ping(ctx context.Context) error {
	client := l.locker.Client()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

func (l rueidisLock) close() error {
	l.locker.Close()
	return nil
}
