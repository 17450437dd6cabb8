package main

import (
	"context"
	"errors"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// takerEntry is a way to take locks on several servers, before the race.
type takerEntry struct {
	name    string
	sends   []string // as in rival
	open    func(addrs []string, pool int) (trier, error)
	healthy bool // measured only where nothing is wrong
}

// takers are measured in turns, the peers behind these. The first one is what the others are compared with.
var takers = []takerEntry{
	{name: bare, sends: sentBySetters, open: openQuorumFloor},
	{name: us, sends: sentByHoldfast, open: openRedLock(holdfast.WithTTL(lease), redlock.WithQuarantine(0))},
	{name: "holdfast (quarantine)", sends: sentByHoldfast, healthy: true,
		open: openRedLock(holdfast.WithTTL(time.Second), redlock.WithQuarantine(quarantine))},
}

// quarantine is about the shortest that covers a lease of 1 s. The servers have to be older to vote.
const quarantine = 6100 * time.Millisecond

// slowest is how long servers that do not answer are waited for by those that have to be told. holdfast's own default is
// as long with this lease; redsync's is lease/20 for a lock, and none for an unlock.
const slowest = time.Second

// dial makes a client for each server. Nobody shares them: what hangs of one taker is not to meet another. The
// deadlines of contexts count, without which redsync would wait for go-redis' timeouts of 3 s, several times.
func dial(addrs []string, pool int) []*redis.Client {
	var clients []*redis.Client
	for _, addr := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, PoolSize: pool, ContextTimeoutEnabled: true}))
	}
	return clients
}

// closeAll closes clients once nobody uses their connections. redsync's calls to slow servers go on when it has returned, and
// go-redis 9.19 can stay in Close for ever while a reply is being read.
func closeAll(clients []*redis.Client) (err error) {
	for _, c := range clients {
		for end := time.Now().Add(10 * slowest); inUse(c) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		err = errors.Join(err, c.Close())
	}
	return err
}

func inUse(c *redis.Client) bool { s := c.PoolStats(); return s.IdleConns < s.TotalConns }

// quorumFloor is the least that a lock on several servers does: on each what floor does, one after the other, and it
// returns as soon as a majority has answered. The others go on in the background.
type quorumFloor struct {
	clients []*redis.Client
	running sync.WaitGroup
}

func openQuorumFloor(addrs []string, pool int) (trier, error) {
	return &quorumFloor{clients: dial(addrs, pool)}, nil
}

func (f *quorumFloor) try(ctx context.Context, key string) (held, error) {
	value, n := peers.RandomValue(), len(f.clients)
	locked, unlocked, through := make(chan error, n), make(chan error, n), make(chan struct{})
	for _, c := range f.clients {
		f.running.Go(func() {
			locked <- within(ctx, func(ctx context.Context) error { return peers.Set(ctx, c, key, value, int64(lease/time.Millisecond)) })
			<-through
			unlocked <- within(ctx, func(ctx context.Context) error { return peers.Delete(ctx, c, key, value) })
		})
	}
	if err := majority(locked, n); err != nil {
		close(through)
		return nil, err
	}
	return releaser(func(context.Context) error {
		close(through)
		return majority(unlocked, n)
	}), nil
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

// within bounds what one server may take.
func within(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	return act(ctx)
}

// wait waits for calls whose answers did not matter, or they would count as another taker's.
func (f *quorumFloor) wait() { f.running.Wait() }

func (f *quorumFloor) close() error {
	f.wait()
	return closeAll(f.clients)
}

type redLock struct {
	locker  *holdfast.Locker
	clients []*redis.Client
}

func openRedLock(opts ...holdfast.Option) func([]string, int) (trier, error) {
	return func(addrs []string, pool int) (trier, error) {
		clients := dial(addrs, pool)
		locker, err := redlock.New(clients, opts...)
		return redLock{locker, clients}, err
	}
}

func (l redLock) try(ctx context.Context, key string) (held, error) {
	return found(l.locker.TryAcquire(ctx, key))
}

func (l redLock) close() error {
	return errors.Join(shutDown(l.locker), closeAll(l.clients))
}
