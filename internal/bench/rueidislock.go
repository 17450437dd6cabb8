//go:build !without_rueidis

package main

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func init() {
	both := []rival{
		{"rueidislock", "rueidis", sentByRueidis, openRueidislock(false)},
		{"rueidislock (NOLOOP)", "rueidis", sentByRueidis, openRueidislock(true)},
	}
	register(peer{
		module: peers["without_rueidis"], rivals: both, soloists: both,
		keepers: []keeperEntry{
			{"rueidislock (NOLOOP)", sentByRueidis, openRueidisKeeper(true), 0},
			// Each of its renewals changes the key, which calls for the next one at once: it takes all processors at any number.
			{"rueidislock", sentByRueidis, openRueidisKeeper(false), 1000},
		},
	})
}

// rueidisLock is github.com/redis/rueidis/rueidislock, which waits for Redis' client-side caching to say that
// the key has changed.
type rueidisLock struct{ locker rueidislock.Locker }

var sentByRueidis = []string{"evalsha", "eval", "ping"}

// openRueidislock sets it up for one Redis. Under contention NoLoopTracking, which its documentation recommends, has a
// fifth to a half of the hand-overs within one process and as many among Lockers. TryNextAfter is how long a look may take
// before it goes on to the next key: with one key there is none, and on a loaded machine the default of 20 ms would give up
// looks that are about to succeed.
func openRueidislock(noLoop bool) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) {
		locker, err := newRueidislock(t.addr, lease, noLoop)
		return rueidisLock{locker}, err
	}
}

func newRueidislock(addr string, lease time.Duration, noLoop bool) (rueidislock.Locker, error) {
	return rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,
		KeyValidity:    lease,
		ExtendInterval: lease / 3,
		TryNextAfter:   time.Second,
		NoLoopTracking: noLoop,
	})
}

// rueidisHeld waits for the answer to the release, and keeps it to itself.
type rueidisHeld context.CancelFunc

func (unlock rueidisHeld) Release(context.Context) error {
	unlock()
	return nil
}

func (l rueidisLock) try(ctx context.Context, key string) (held, error) {
	_, unlock, err := l.locker.TryWithContext(ctx, key)
	return found(rueidisHeld(unlock), err)
}

// acquire gives the lock a context of its own, since rueidislock frees a lock when the context ends that it was
// acquired with.
func (l rueidisLock) acquire(ctx context.Context, key string) (held, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	_, unlock, err := l.locker.WithContext(own, key)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	if !stop() { // cancelled, so that the lock is gone or about to
		unlock()
		return nil, ctx.Err()
	}
	return rueidisHeld(func() { unlock(); cancel() }), nil
}

func (l rueidisLock) ping(ctx context.Context) error {
	client := l.locker.Client()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

func (l rueidisLock) close() error {
	l.locker.Close()
	return nil
}

// rueidisKeeper is rueidislock, which renews by itself.
type rueidisKeeper struct {
	locker rueidislock.Locker
	mu     sync.Mutex // guards held
	held   []context.Context
}

func openRueidisKeeper(noLoop bool) func(context.Context, string) (keeper, error) {
	return func(_ context.Context, addr string) (keeper, error) {
		locker, err := newRueidislock(addr, heldLease, noLoop)
		return &rueidisKeeper{locker: locker}, err
	}
}

func (k *rueidisKeeper) hold(ctx context.Context, key string) error {
	ctx, _, err := k.locker.WithContext(ctx, key)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, ctx)
	return nil
}

func (k *rueidisKeeper) lost() (n int) {
	for _, ctx := range k.held {
		if ctx.Err() != nil {
			n++
		}
	}
	return n
}

func (k *rueidisKeeper) close() error {
	k.locker.Close()
	return nil
}
