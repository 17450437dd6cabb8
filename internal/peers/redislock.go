//go:build !without_redislock

package peers

import (
	"context"
	"time"

	"github.com/bsm/redislock"
)

func init() {
	Redislock.open = func(s Settings) (Locker, error) {
		return redisLock{overGoRedis{s.Clients}, redislock.New(s.Clients[0]), s}, nil
	}
}

type redisLock struct {
	overGoRedis
	client *redislock.Client
	Settings
}

func (l redisLock) Try(ctx context.Context, key string) (Lock, error) { return l.obtain(ctx, key, nil) }

// Acquire ends after a lease where ctx has no deadline.
func (l redisLock) Acquire(ctx context.Context, key string) (Lock, error) {
	return l.obtain(ctx, key, polling(l.Pause))
}

func (l redisLock) obtain(ctx context.Context, key string, retry redislock.RetryStrategy) (Lock, error) {
	lock, err := l.client.Obtain(ctx, key, l.Lease, &redislock.Options{RetryStrategy: retry, Token: l.Value})
	if l.ExtendPause != nil && err == nil {
		return extending{redislockLock{lock}, l.ExtendPause}, nil
	}
	return found(redislockLock{lock}, mark(err, ErrHeld, redislock.ErrNotObtained))
}

// redislockLock is a pointer and no more, which costs nothing where it becomes a Lock.
type redislockLock struct{ lock *redislock.Lock }

func (l redislockLock) Release(ctx context.Context) error {
	return mark(l.lock.Release(ctx), ErrNotHeld, redislock.ErrLockNotHeld)
}

func (l redislockLock) Extend(ctx context.Context, lease time.Duration) error {
	return mark(l.lock.Refresh(ctx, lease, nil), ErrNotHeld, redislock.ErrNotObtained)
}

func (l redislockLock) Lost() error { return nil }

// extending tries more than once.
type extending struct {
	redislockLock
	pause func(int) time.Duration
}

func (l extending) Extend(ctx context.Context, lease time.Duration) error {
	err := l.lock.Refresh(ctx, lease, &redislock.Options{RetryStrategy: polling(l.pause)})
	return mark(err, ErrNotHeld, redislock.ErrNotObtained)
}

// polling is a new strategy, as it counts.
func polling(pause func(int) time.Duration) redislock.RetryStrategy {
	if pause == nil {
		return nil // not again
	}
	return &pauses{pause: pause}
}

type pauses struct {
	pause func(int) time.Duration
	tries int
}

func (p *pauses) NextBackoff() time.Duration {
	p.tries++
	return p.pause(p.tries)
}
