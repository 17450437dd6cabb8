//go:build !without_rueidis

package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func init() {
	register(library{
		name:   "rueidislock",
		module: "github.com/redis/rueidis",
		key:    func(name string) string { return "rueidislock:0:" + name },
		open:   openRueidislock,
		lacks: map[feature]string{
			fencing:  "it has no fencing token",
			identity: "it chooses the value of the key itself",
			measured: "it ends its context by a renewal alone, see partition",
			reports:  "its release returns nothing",
			majority: "its majority is one of keys on one Redis or Cluster",
		},
	})
}

// rueidisLock is github.com/redis/rueidis/rueidislock, set up as in the example of its README. TryNextAfter is how
// long it waits for the answer of a try, 20 ms by default, which a loaded machine exceeds without any fault.
// Its connections are bounded like those of peerClient.
type rueidisLock struct {
	locker rueidislock.Locker
	lease  time.Duration
}

func openRueidislock(s settings) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: s.addrs, ConnWriteTimeout: timeoutFor(s.lease)},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    s.lease,
		TryNextAfter:   time.Second,
	})
	return rueidisLock{l, s.lease}, err
}

func (l rueidisLock) try(ctx context.Context, key string) (lock, error) {
	return l.take(ctx, key, l.locker.TryWithContext)
}

func (l rueidisLock) acquire(ctx context.Context, key string) (lock, error) {
	return l.take(ctx, key, l.locker.WithContext)
}

// take hands ctx to the library where it ends before the lease could: the library means it for the lock as well as
// for the call, and bounds the lease by its deadline. Elsewhere ctx is the call's, and the lock is given another.
func (l rueidisLock) take(ctx context.Context, key string,
	with func(context.Context, string) (context.Context, context.CancelFunc, error)) (lock, error) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < l.lease {
		work, unlock, err := with(ctx, key)
		if err != nil {
			return nil, marked(err, errHeld, rueidislock.ErrNotLocked)
		}
		return rueidisHold{work, unlock}, nil
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	work, unlock, err := with(own, key)
	ended := !stop()
	if err == nil && !ended {
		return rueidisHold{work, func() { unlock(); cancel() }}, nil
	}
	if err == nil {
		unlock()
	}
	cancel()
	if ended {
		return nil, ctx.Err() // what it returns itself where ctx is its own
	}
	return nil, marked(err, errHeld, rueidislock.ErrNotLocked)
}

func (l rueidisLock) close() { l.locker.Close() }

type rueidisHold struct {
	work   context.Context // the holder's
	unlock func()
}

// release waits for the answer, which the library keeps to itself.
func (h rueidisHold) release(context.Context) error {
	h.unlock()
	return nil
}

func (h rueidisHold) lost() error { return h.work.Err() }

func (h rueidisHold) token() int64 { return 0 }
