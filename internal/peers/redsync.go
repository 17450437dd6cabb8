//go:build !without_redsync

package peers

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

func init() { Redsync.open = openRedsync }

type redSync struct {
	overGoRedis
	sync    *redsync.Redsync
	options []redsync.Option
}

// openRedsync has Acquire try for as long as its context lasts, where by default it gives up after 32 tries.
func openRedsync(s Settings) (Locker, error) {
	options := []redsync.Option{redsync.WithExpiry(s.Lease), redsync.WithTries(math.MaxInt), redsync.WithFailFast(s.FailFast)}
	if s.TimeoutFactor != 0 {
		options = append(options, redsync.WithTimeoutFactor(s.TimeoutFactor))
	}
	if s.Pause != nil {
		options = append(options, redsync.WithRetryDelayFunc(s.Pause))
	}
	if s.Value != "" {
		options = append(options, redsync.WithGenValueFunc(func() (string, error) { return s.Value, nil }))
	}
	var pools []redis.Pool
	for _, c := range s.Clients {
		pools = append(pools, goredis.NewPool(c))
	}
	return redSync{overGoRedis{s.Clients}, redsync.New(pools...), options}, nil
}

func (l redSync) Try(ctx context.Context, key string) (Lock, error) {
	lock := l.mutex(key)
	return found(lock, isTaken(lock.mutex.TryLockContext(ctx), ErrHeld))
}

func (l redSync) Acquire(ctx context.Context, key string) (Lock, error) {
	lock := l.mutex(key)
	return found(lock, isTaken(lock.mutex.LockContext(ctx), ErrHeld))
}

// mutex keeps the value of one holder.
func (l redSync) mutex(key string) redsyncLock {
	return redsyncLock{l.sync.NewMutex(key, l.options...)}
}

// redsyncLock is a pointer and no more, as redislockLock is.
type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Release(ctx context.Context) error { return notHeld(l.mutex.UnlockContext(ctx)) }

func (l redsyncLock) Extend(ctx context.Context, _ time.Duration) error {
	return notHeld(l.mutex.ExtendContext(ctx))
}

// Lost goes by Until, which redsync's documentation recommends for that.
func (l redsyncLock) Lost() error {
	if time.Now().Before(l.mutex.Until()) {
		return nil
	}
	return ErrNotHeld
}

// notHeld is for what false always comes with an error of.
func notHeld(_ bool, err error) error {
	return isTaken(mark(err, ErrNotHeld, redsync.ErrLockAlreadyExpired), ErrNotHeld)
}

// isTaken marks err where it says that the key is another's.
func isTaken(err, mark error) error {
	if err == nil {
		return nil // before what follows is allocated
	}
	taken, node := (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	if errors.As(err, &taken) || errors.As(err, &node) {
		return marked{err, mark}
	}
	return err
}
