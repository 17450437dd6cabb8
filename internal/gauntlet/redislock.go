//go:build !without_redislock

package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	goredis9 "github.com/redis/go-redis/v9"
)

func init() {
	register(library{
		name:   "redislock",
		module: "github.com/bsm/redislock",
		key:    sameKey,
		open:   openRedislock,
		lacks: map[feature]string{
			fencing:  "this version has no fencing token",
			majority: "it takes locks on one Redis",
		},
	})
}

// redisLock is github.com/bsm/redislock. It leaves renewal to its caller: here the watchdog of its README, with the
// retries that Refresh offers, for as long as the lease lasts.
type redisLock struct {
	client *redislock.Client
	rdb    *goredis9.Client
	settings
}

func openRedislock(s settings) (locker, error) {
	rdb := peerClient(s.addrs[0], s.lease)
	return redisLock{redislock.New(rdb), rdb, s}, nil
}

func (l redisLock) try(ctx context.Context, key string) (lock, error) {
	sent := time.Now()
	got, err := l.obtain(ctx, key, redislock.NoRetry())
	return l.watch(got, err, sent)
}

// acquire pauses as in the examples of its documentation. It is not told when the last try was sent.
func (l redisLock) acquire(ctx context.Context, key string) (lock, error) {
	got, err := l.obtain(ctx, key, redislock.LinearBackoff(100*time.Millisecond))
	return l.watch(got, err, time.Now())
}

func (l redisLock) obtain(ctx context.Context, key string, retry redislock.RetryStrategy) (*redislock.Lock, error) {
	return l.client.Obtain(ctx, key, l.lease, &redislock.Options{RetryStrategy: retry, Token: l.owner})
}

func (l redisLock) watch(got *redislock.Lock, err error, sent time.Time) (lock, error) {
	if err != nil {
		return nil, marked(err, errHeld, redislock.ErrNotObtained)
	}
	w := watched{lock: got, done: make(chan struct{})}
	w.work, w.stop = context.WithCancel(context.Background())
	go w.renew(sent, l.lease)
	return w, nil
}

func (l redisLock) close() { _ = l.rdb.Close() }

type watched struct {
	lock *redislock.Lock
	work context.Context // the holder's
	stop context.CancelFunc
	done chan struct{}
}

func (w watched) renew(sent time.Time, lease time.Duration) {
	defer close(w.done)
	defer w.stop()
	ticks := time.NewTicker(lease / 3)
	defer ticks.Stop()
	for end := sent.Add(lease); ; {
		select {
		case <-w.work.Done():
			return
		case <-ticks.C:
		}
		sent := time.Now()
		ctx, cancel := context.WithDeadline(w.work, end)
		err := w.lock.Refresh(ctx, lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(lease / 30)})
		cancel()
		if err != nil {
			return
		}
		end = sent.Add(lease)
	}
}

func (w watched) release(ctx context.Context) error {
	w.stop()
	<-w.done
	return marked(w.lock.Release(ctx), errNotHeld, redislock.ErrLockNotHeld)
}

func (w watched) lost() error { return w.work.Err() }

func (w watched) token() int64 { return 0 }
