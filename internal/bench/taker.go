package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// taker is one way to take locks on several servers. take tries once; it may be called concurrently.
type taker interface {
	take(ctx context.Context, key string) (give func(context.Context) error, err error)
	close() error
}

// takerEntry is a taker before the race.
type takerEntry struct {
	name    string
	sends   []string // as in entry
	open    func(addrs []string, pool int) (taker, error)
	healthy bool // measured only where nothing is wrong
}

// takers are measured in turns. The first one is what the others are compared with.
var takers = []takerEntry{
	{name: "floor", sends: []string{"set", "evalsha", "eval"}, open: openQuorumFloor},
	{name: "holdfast", sends: sentByHoldfast, open: openRedLock(holdfast.WithTTL(lease), holdfast.WithQuarantine(0))},
	{name: "holdfast (quarantine)", sends: sentByHoldfast, healthy: true,
		open: openRedLock(holdfast.WithTTL(time.Second), holdfast.WithQuarantine(quarantine))},
	{name: "redsync", sends: []string{"set", "evalsha", "eval"}, open: openRedsyncQuorum(false)},
	{name: "redsync (fail fast)", sends: []string{"set", "evalsha", "eval"}, open: openRedsyncQuorum(true)},
}

// quarantine is about the shortest that covers a lease of 1 s. The servers have to be older to vote.
const quarantine = 6100 * time.Millisecond

// slowest is how long servers that do not answer are waited for by those that have to be told. holdfast's own default is
// as long with this lease; redsync's is lease/20 for a lock, and none for an unlock.
const slowest = time.Second

const redsyncModule = "github.com/go-redsync/redsync/v4"

// dial makes a client for each server. Nobody shares them: what hangs of one taker is not to meet another. The
// deadlines of contexts count, without which redsync would wait for go-redis' timeouts of 3 s, several times.
func dial(addrs []string, pool int) []*redis.Client {
	var clients []*redis.Client
	for _, addr := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, PoolSize: pool, ContextTimeoutEnabled: true}))
	}
	return clients
}

func closeAll(clients []*redis.Client) (err error) {
	for _, c := range clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

// quorumFloor is the least that a lock on several servers does: on each what floor does, one after the other, and it
// returns as soon as a majority has answered. The others go on in the background.
type quorumFloor struct {
	clients []*redis.Client
	running sync.WaitGroup
}

func openQuorumFloor(addrs []string, pool int) (taker, error) {
	return &quorumFloor{clients: dial(addrs, pool)}, nil
}

func (f *quorumFloor) take(ctx context.Context, key string) (func(context.Context) error, error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	value := base64.RawURLEncoding.EncodeToString(id[:])
	n := len(f.clients)
	locked, unlocked, through := make(chan error, n), make(chan error, n), make(chan struct{})
	for _, c := range f.clients {
		f.running.Go(func() {
			locked <- setOne(ctx, c, key, value)
			<-through
			unlocked <- deleteOne(ctx, c, key, value)
		})
	}
	give := func(context.Context) error {
		close(through)
		return majority(unlocked, n)
	}
	err := majority(locked, n)
	if err != nil {
		close(through)
		return nil, err
	}
	return give, nil
}

// majority returns as soon as most have succeeded, or cannot any more.
func majority(answers <-chan error, n int) error {
	good, bad := 0, error(nil)
	for left := n; left > 0; left-- {
		if err := <-answers; err != nil {
			bad = err
		} else if good++; good > n/2 {
			return nil
		}
		if good+left-1 <= n/2 {
			return bad
		}
	}
	return bad
}

func setOne(ctx context.Context, c *redis.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	set := redis.NewStatusCmd(ctx, "set", key, value, "nx", "px", int64(lease/time.Millisecond))
	err := c.Process(ctx, set)
	if errors.Is(err, redis.Nil) {
		return errHeld
	}
	return err
}

func deleteOne(ctx context.Context, c *redis.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	deleted, err := compareAndDelete.Run(ctx, c, []string{key}, value).Int()
	if err == nil && deleted != 1 {
		return errLost
	}
	return err
}

func (f *quorumFloor) close() error {
	f.running.Wait()
	return closeAll(f.clients)
}

type redLock struct {
	locker  *holdfast.Locker
	clients []*redis.Client
}

func openRedLock(opts ...holdfast.Option) func([]string, int) (taker, error) {
	return func(addrs []string, pool int) (taker, error) {
		clients := dial(addrs, pool)
		locker, err := holdfast.NewRedLock(clients, opts...)
		return redLock{locker, clients}, err
	}
}

func (l redLock) take(ctx context.Context, key string) (func(context.Context) error, error) {
	lock, err := l.locker.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func (l redLock) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(l.locker.Shutdown(ctx), closeAll(l.clients))
}

// redsyncQuorum is redsync on several servers. By default it waits for the answers of all of them, or their timeouts.
type redsyncQuorum struct {
	sync     *redsync.Redsync
	clients  []*redis.Client
	failFast bool
}

func openRedsyncQuorum(failFast bool) func([]string, int) (taker, error) {
	return func(addrs []string, pool int) (taker, error) {
		clients := dial(addrs, pool)
		var pools []redsyncredis.Pool
		for _, c := range clients {
			pools = append(pools, goredis.NewPool(c))
		}
		return redsyncQuorum{redsync.New(pools...), clients, failFast}, nil
	}
}

func (l redsyncQuorum) take(ctx context.Context, key string) (func(context.Context) error, error) {
	mutex := l.sync.NewMutex(key, redsync.WithExpiry(lease), redsync.WithFailFast(l.failFast))
	if err := mutex.TryLockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, slowest)
		defer cancel()
		_, err := mutex.UnlockContext(ctx)
		return err
	}, nil
}

func (l redsyncQuorum) close() error { return closeAll(l.clients) }
