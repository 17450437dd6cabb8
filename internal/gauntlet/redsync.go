//go:build !without_redsync

package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
)

func init() {
	register(library{
		name:   "redsync",
		module: "github.com/go-redsync/redsync/v4",
		key:    sameKey,
		open:   openRedsync,
		lacks: map[feature]string{
			fencing: "it has no fencing token",
			renewal: "it does not renew by itself; callers extend the lock",
		},
	})
}

// redSync is github.com/go-redsync/redsync, with its option to return as soon as a majority has answered.
type redSync struct {
	sync    *redsync.Redsync
	clients []*goredis9.Client
	options []redsync.Option
}

func openRedsync(s settings) (locker, error) {
	l := redSync{options: []redsync.Option{redsync.WithExpiry(s.lease), redsync.WithFailFast(true)}}
	if s.lease <= 5*time.Second {
		// It waits for an answer for a twentieth of the lease: little, where the lease is as short as here only.
		l.options = append(l.options, redsync.WithTimeoutFactor(0.2))
	}
	if s.owner != "" {
		l.options = append(l.options, redsync.WithGenValueFunc(func() (string, error) { return s.owner, nil }))
	}
	var pools []redis.Pool
	for _, addr := range s.addrs {
		c := peerClient(addr, s.lease)
		l.clients = append(l.clients, c)
		pools = append(pools, goredis.NewPool(c))
	}
	l.sync = redsync.New(pools...)
	return l, nil
}

func (l redSync) try(ctx context.Context, key string) (lock, error) { return l.lock(ctx, key, 1) }

// acquire pauses as it does by default, but does not give up after 32 tries.
func (l redSync) acquire(ctx context.Context, key string) (lock, error) {
	return l.lock(ctx, key, math.MaxInt)
}

func (l redSync) lock(ctx context.Context, key string, tries int) (lock, error) {
	mutex := l.sync.NewMutex(key, append(l.options, redsync.WithTries(tries))...)
	if err := mutex.LockContext(ctx); err != nil {
		if isTaken(err) {
			err = errors.Join(errHeld, err)
		}
		return nil, err
	}
	return redSyncLock{mutex}, nil
}

func (l redSync) close() {
	for _, c := range l.clients {
		_ = c.Close()
	}
}

type redSyncLock struct{ mutex *redsync.Mutex }

func (l redSyncLock) release(ctx context.Context) error {
	_, err := l.mutex.UnlockContext(ctx) // false always comes with an error
	if errors.Is(err, redsync.ErrLockAlreadyExpired) || isTaken(err) {
		err = errors.Join(errNotHeld, err)
	}
	return err
}

func isTaken(err error) bool {
	taken, node := (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	return errors.As(err, &taken) || errors.As(err, &node)
}

// lost goes by Until, which its documentation recommends for that.
func (l redSyncLock) lost() error {
	if time.Now().Before(l.mutex.Until()) {
		return nil
	}
	return errNotHeld
}

func (l redSyncLock) token() int64 { return 0 }
