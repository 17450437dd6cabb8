package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
)

var redislockLibrary = library{
	name:   "redislock",
	module: "github.com/bsm/redislock",
	key:    sameKey,
	open:   openRedislock,
	lacks: map[feature]string{
		fencing:  "this version has no fencing token",
		majority: "it takes locks on one Redis",
	},
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

var redsyncLibrary = library{
	name:   "redsync",
	module: "github.com/go-redsync/redsync/v4",
	key:    sameKey,
	open:   openRedsync,
	lacks: map[feature]string{
		fencing: "it has no fencing token",
		renewal: "it does not renew by itself; callers extend the lock",
	},
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
