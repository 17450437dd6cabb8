package peers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisSemaphore is the algorithm of redis-semaphore, a package for Node.js, written here over go-redis: a sorted set of the
// holders, each with the time of its acquire by its own clock. An acquire takes out those that are older than its own lease
// by its own clock, and enters where the set has fewer than its own limit. A release takes the holder out and tells nobody:
// waiters poll, every 10 ms by default. With several clients a holder needs a majority of the servers, each of which counts
// to the limit by itself.
var RedisSemaphore = &Library{Name: "redis-semaphore", open: func(s Settings) (Locker, error) {
	if s.Clock == nil {
		s.Clock = time.Now
	}
	if s.Pause == nil {
		s.Pause = func(int) time.Duration { return 10 * time.Millisecond }
	}
	return redisSemaphore{overGoRedis{s.Clients}, s}, nil
}}

type redisSemaphore struct {
	overGoRedis
	Settings
}

type redisSemaphoreLock struct {
	redisSemaphore
	key, id string
}

// enterSet has ARGV: the limit, the holder, the lease in ms, and the time by the client's clock.
var enterSet = redis.NewScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[4] - ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`)

func (s redisSemaphore) Try(ctx context.Context, key string) (Lock, error) {
	l := redisSemaphoreLock{s, key, RandomValue()}
	now := s.Clock().UnixMilli()
	votes, err := s.each(func(c *redis.Client) (int, error) {
		return enterSet.Run(ctx, c, []string{key}, s.Limit, l.id, s.Lease.Milliseconds(), now).Int()
	})
	switch {
	case votes > len(s.clients)/2:
		return l, nil
	case len(s.clients) > 1:
		return nil, errors.Join(ErrHeld, err, l.Release(ctx))
	case err == nil:
		err = ErrHeld
	}
	return nil, err
}

// each asks all servers at once, and adds up what they say.
func (s redisSemaphore) each(ask func(*redis.Client) (int, error)) (sum int, err error) {
	if len(s.clients) == 1 {
		return ask(s.clients[0])
	}
	said, failures := make([]int, len(s.clients)), make([]error, len(s.clients))
	var asked sync.WaitGroup
	for i, c := range s.clients {
		asked.Go(func() { said[i], failures[i] = ask(c) })
	}
	asked.Wait()
	for _, n := range said {
		sum += n
	}
	return sum, errors.Join(failures...)
}

func (s redisSemaphore) Acquire(ctx context.Context, key string) (Lock, error) {
	for tries := 1; ; tries++ {
		l, err := s.Try(ctx, key)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(s.Pause(tries)):
		}
	}
}

// Release does not tell whether the caller was still in the set, as theirs does not.
func (l redisSemaphoreLock) Release(ctx context.Context) error {
	_, err := l.each(func(c *redis.Client) (int, error) {
		n, err := c.ZRem(ctx, l.key, l.id).Result()
		return int(n), err
	})
	return err
}

// Extend is left out: nobody here holds a place for longer than a lease.
func (l redisSemaphoreLock) Extend(context.Context, time.Duration) error {
	return errors.ErrUnsupported
}

func (l redisSemaphoreLock) Lost() error { return nil }
