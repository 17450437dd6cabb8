//go:build !without_redsync

package main

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func init() {
	alone := []rival{{"redsync", goRedis, sentBySetters, openRedsync}}
	register(peer{
		module: peers["without_redsync"], rivals: alone, soloists: alone,
		takers: []takerEntry{
			{name: "redsync", sends: sentBySetters, open: openRedsyncQuorum(false)},
			{name: failFast, sends: sentBySetters, open: openRedsyncQuorum(true)},
		},
	})
}

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

// redsyncQuorum is redsync on several servers. By default it waits for the answers of all of them, or their timeouts.
type redsyncQuorum struct {
	sync     *redsync.Redsync
	clients  []*redis.Client
	failFast bool
}

func openRedsyncQuorum(failFast bool) func([]string, int) (trier, error) {
	return func(addrs []string, pool int) (trier, error) {
		clients := dial(addrs, pool)
		var pools []redsyncredis.Pool
		for _, c := range clients {
			pools = append(pools, goredis.NewPool(c))
		}
		return redsyncQuorum{redsync.New(pools...), clients, failFast}, nil
	}
}

func (l redsyncQuorum) try(ctx context.Context, key string) (held, error) {
	lock := redsyncLock{l.sync.NewMutex(key, redsync.WithExpiry(lease), redsync.WithFailFast(l.failFast))}
	if err := lock.TryLockContext(ctx); err != nil {
		return nil, err
	}
	return releaser(func(ctx context.Context) error { return within(ctx, lock.Release) }), nil
}

func (l redsyncQuorum) close() error { return closeAll(l.clients) }
