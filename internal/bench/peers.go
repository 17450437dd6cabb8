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
var peers = []string{"github.com/bsm/redislock", redsyncModule, "github.com/redis/rueidis"}

// Beside their documented settings the peers are set up for a hot key as well as they allow: of the settings tried, those
// with the most hand-overs over all tables. Two poll, with pauses that grow from a few ms to 16 on average. Shorter ones keep
// the server so busy among hundreds of waiters that releases come late; longer ones leave the key to whoever had it last.
const lookLate = 16 * time.Millisecond

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

const redsyncModule = "github.com/go-redsync/redsync/v4"

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

// redsyncLock unlocks: UnlockContext returns false only with an error.
type redsyncLock struct{ *redsync.Mutex }

func (l redsyncLock) Release(ctx context.Context) error {
	_, err := l.UnlockContext(ctx)
	return err
}

func (l redSync) try(ctx context.Context, key string) (held, error) {
	lock := redsyncLock{l.sync.NewMutex(key, l.options...)}
	return found(lock, lock.TryLockContext(ctx))
}

func (l redSync) acquire(ctx context.Context, key string) (held, error) {
	lock := redsyncLock{l.sync.NewMutex(key, l.options...)} // keeps the value of one holder
	return found(lock, lock.LockContext(ctx))
}

func (l redSync) ping(ctx context.Context) error { return l.rdb.Ping(ctx).Err() }
func (l redSync) close() error                   { return nil }

// rueidisLock is github.com/redis/rueidis/rueidislock, which waits for Redis' client-side caching to say that
// the key has changed.
type rueidisLock struct{ locker rueidislock.Locker }

var sentByRueidis = []string{"evalsha", "eval", "ping"}

// openRueidislock sets it up for one Redis. Under contention NoLoopTracking, which its documentation recommends, has a
// fifth to a half of the hand-overs within one process and as many among Lockers. TryNextAfter is how long a look may take
// before it goes on to the next key: with one key there is none, and on a loaded machine the default of 20 ms would give up
// looks that are about to succeed.
func openRueidislock(noLoop bool) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) {
		locker, err := newRueidislock(t.addr, lease, noLoop)
		return rueidisLock{locker}, err
	}
}

func newRueidislock(addr string, lease time.Duration, noLoop bool) (rueidislock.Locker, error) {
	return rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,
		KeyValidity:    lease,
		ExtendInterval: lease / 3,
		TryNextAfter:   time.Second,
		NoLoopTracking: noLoop,
	})
}

// rueidisHeld waits for the answer to the release, and keeps it to itself.
type rueidisHeld context.CancelFunc

func (unlock rueidisHeld) Release(context.Context) error {
	unlock()
	return nil
}

func (l rueidisLock) try(ctx context.Context, key string) (held, error) {
	_, unlock, err := l.locker.TryWithContext(ctx, key)
	return found(rueidisHeld(unlock), err)
}

// acquire gives the lock a context of its own, since rueidislock frees a lock when the context ends that it was
// acquired with.
func (l rueidisLock) acquire(ctx context.Context, key string) (held, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	_, unlock, err := l.locker.WithContext(own, key)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	if !stop() { // cancelled, so that the lock is gone or about to
		unlock()
		return nil, ctx.Err()
	}
	return rueidisHeld(func() { unlock(); cancel() }), nil
}

func (l rueidisLock) ping(ctx context.Context) error {
	client := l.locker.Client()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

func (l rueidisLock) close() error {
	l.locker.Close()
	return nil
}
