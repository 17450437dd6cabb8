//go:build !without_rueidis

package peers

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func init() { Rueidislock.open = openRueidislock }

type rueidisLock struct {
	locker    rueidislock.Locker
	unwatched bool
}

// openRueidislock sets it up for one Redis, as in the example of its README. TryNextAfter is how long a look may take before
// it goes on to the next key: with one key there is none, and on a loaded machine the default of 20 ms would give up looks
// that are about to succeed.
func openRueidislock(s Settings) (Locker, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: s.Addrs, ConnWriteTimeout: s.WriteTimeout},
		KeyMajority:    1,
		KeyValidity:    s.Lease,
		ExtendInterval: s.Renewal,
		TryNextAfter:   time.Second,
		NoLoopTracking: s.NoLoop,
	})
	if err != nil {
		return nil, err
	}
	return rueidisLock{locker, s.Unwatched}, nil
}

func (l rueidisLock) Try(ctx context.Context, key string) (Lock, error) {
	return l.found(l.locker.TryWithContext(ctx, key))
}

func (l rueidisLock) Acquire(ctx context.Context, key string) (Lock, error) {
	return l.found(l.locker.WithContext(ctx, key))
}

func (l rueidisLock) Ping(ctx context.Context) error {
	client := l.locker.Client()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

func (l rueidisLock) Close() { l.locker.Close() }

func (l rueidisLock) found(work context.Context, unlock context.CancelFunc, err error) (Lock, error) {
	switch {
	case err != nil:
		return nil, mark(err, ErrHeld, rueidislock.ErrNotLocked)
	case l.unwatched:
		return unlocker(unlock), nil
	}
	return rueidislockLock{unlocker(unlock), work}, nil
}

// unlocker waits for the answer to the release, which the library keeps to itself.
type unlocker context.CancelFunc

func (u unlocker) Release(context.Context) error {
	u()
	return nil
}

func (u unlocker) Extend(context.Context, time.Duration) error { return errors.ErrUnsupported }

func (u unlocker) Lost() error { return nil }

type rueidislockLock struct {
	unlocker
	work context.Context // the holder's
}

func (l rueidislockLock) Lost() error { return l.work.Err() }
