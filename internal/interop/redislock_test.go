//go:build !without_redislock

package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func init() { rivals = append(rivals, rival{"redislock", obtainRedislock}) }

type lockOfRedislock struct{ lock *redislock.Lock }

func obtainRedislock(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error) {
	lock, err := redislock.Obtain(ctx, rdb, key, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errRefused
	}
	return lockOfRedislock{lock}, err
}

func (l lockOfRedislock) release(ctx context.Context) error {
	err := l.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return errNotHeld
	}
	return err
}

func (l lockOfRedislock) extend(ctx context.Context, ttl time.Duration) error {
	err := l.lock.Refresh(ctx, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return errNotHeld
	}
	return err
}

// redislock compares as much of the stored value as its own token is long, and takes a lock that begins alike
// for its own. Its users can choose that token, a host name say, as ours can choose the label.
func TestLabelDoesNotLetATokenOfTheSameTextIn(t *testing.T) {
	eachServer(t, func(t *testing.T, e *env) {
		lock := e.acquire(e.locker(), core.WithLabel("api-1"))
		_, err := redislock.Obtain(background, e.rdb, e.key, e.long, &redislock.Options{Token: "api-1"})
		if !errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("got %v while we hold the key, want ErrNotObtained", err)
		}
		if err := lock.Err(); err != nil {
			t.Errorf("got %v, want our lock held", err)
		}
		e.release(lock)
	})
}
