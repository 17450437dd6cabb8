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

type rueidisLock struct{ locker rueidislock.Locker }

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
	return rueidisLock{locker}, nil
}

func (l rueidisLock) Try(ctx context.Context, key string) (Lock, error) {
	return rueidisFound(l.locker.TryWithContext(ctx, key))
}

func (l rueidisLock) Acquire(ctx context.Context, key string) (Lock, error) {
	return rueidisFound(l.locker.WithContext(ctx, key))
}

func (l rueidisLock) Ping(ctx context.Context) error {
	client := l.locker.Client()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

func (l rueidisLock) Close() { l.locker.Close() }

type rueidislockLock struct {
	work   context.Context // the holder's
	unlock context.CancelFunc
}

func rueidisFound(work context.Context, unlock context.CancelFunc, err error) (Lock, error) {
	return found(rueidislockLock{work, unlock}, mark(err, ErrHeld, rueidislock.ErrNotLocked))
}

// Release waits for the answer, which the library keeps to itself.
func (l rueidislockLock) Release(context.Context) error {
	l.unlock()
	return nil
}

func (l rueidislockLock) Extend(context.Context, time.Duration) error { return errors.ErrUnsupported }

func (l rueidislockLock) Lost() error { return l.work.Err() }
