//go:build !without_redsync

package interop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func init() { rivals = append(rivals, rival{"redsync", obtainRedsync}) }

type lockOfRedsync struct{ mutex *redsync.Mutex }

func obtainRedsync(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error) {
	// Its bound for one call is 5 % of the lease by default: too short for a loaded machine.
	mutex := redsync.New(goredis.NewPool(rdb)).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTimeoutFactor(1))
	err := mutex.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		return nil, errRefused
	}
	return lockOfRedsync{mutex}, err
}

func (l lockOfRedsync) release(ctx context.Context) error {
	return lostOfRedsync(l.mutex.UnlockContext(ctx))
}

// extend asks for the lease it was obtained with, redsync knows no other.
func (l lockOfRedsync) extend(ctx context.Context, _ time.Duration) error {
	return lostOfRedsync(l.mutex.ExtendContext(ctx))
}

func lostOfRedsync(_ bool, err error) error {
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return errNotHeld
	}
	return err
}

// On the same masters redsync's RedLock and ours exclude each other, also where a minority is down.
func TestRedLocksExcludeEachOther(t *testing.T) {
	const key = "order:42"
	for name, down := range map[string]int{"all masters": 0, "two of five down": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ours []*redis.Client
				var theirs []redsyncredis.Pool
				for i := range 5 {
					b := servertest.NewBubble(t)
					ours, theirs = append(ours, b.Client()), append(theirs, goredis.NewPool(b.Client()))
					if i < down {
						b.Down()
					}
				}
				l, err := core.NewRedLock(ours)
				if err != nil {
					t.Fatal(err)
				}
				e := &env{t: t}
				defer e.shutdown(l)
				rival := func() *redsync.Mutex {
					return redsync.New(theirs...).NewMutex(key, redsync.WithExpiry(15*time.Second), redsync.WithTries(1))
				}

				lock, err := l.TryAcquire(background, key)
				if err != nil {
					t.Fatal(err)
				}
				if err := rival().LockContext(background); err == nil {
					t.Error("redsync has a lock that is ours")
				}
				if err := lock.Err(); err != nil {
					t.Error(err)
				}
				if err := lock.Release(background); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)

				m := rival()
				if err := m.LockContext(background); err != nil {
					t.Fatal(err)
				}
				if _, err = l.TryAcquire(background, key); !errors.Is(err, core.ErrNotAcquired) {
					t.Errorf("while redsync has the lock: got %v", err)
				}
				if ok, err := m.UnlockContext(background); !ok {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
				if lock, err = l.TryAcquire(background, key); err != nil {
					t.Fatal(err)
				}
				if err := lock.Release(background); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
