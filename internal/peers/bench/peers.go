package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// peer is a library of others whose locks are measured too, behind holdfast and the floor in all tables.
type peer struct {
	lib      *peers.Library
	rivals   []rival
	soloists []rival
	takers   []takerEntry
	keepers  []keeperEntry
}

// Beside their documented settings the peers are set up for a hot key as well as they allow: of the settings tried, those
// with the most hand-overs over all tables. Two poll, with pauses that grow from a few ms to 16 on average. Shorter ones keep
// the server so busy among hundreds of waiters that releases come late; longer ones leave the key to its latest holder.
const lookLate = 16 * time.Millisecond

var sentByRueidis = []string{"evalsha", "eval", "ping"}

func redislockPeer() peer {
	pausing := func(name string, pause func(int) time.Duration) rival {
		return rival{name, goRedis, sentByScripts, openPeer(peers.Redislock, peers.Settings{Pause: pause})}
	}
	// The strategy of its README, there with 100 ms and an end after 3 tries.
	every := func(pause time.Duration) func(int) time.Duration {
		return func(int) time.Duration { return pause }
	}
	return peer{
		lib: peers.Redislock,
		rivals: []rival{
			// Its other strategy: pauses of 4, 8 and from then on 16 ms.
			pausing("redislock (4–16 ms)", func(tries int) time.Duration { return min(lookLate, 2*time.Millisecond<<min(tries, 10)) }),
			pausing("redislock (1 ms)", every(time.Millisecond)),
			pausing("redislock (100 ms)", every(100*time.Millisecond)),
		},
		soloists: []rival{pausing("redislock", nil)},
	}
}

// redsyncPeer pauses for a random time of 1 ms and up to 4, 8, 16 and then always 32 ms more. By default it pauses for 50 to
// 250 ms: less than a tenth of the hand-overs.
func redsyncPeer() peer {
	pause := func(tries int) time.Duration {
		return time.Millisecond + rand.N(min(2*lookLate, 2*time.Millisecond<<min(tries, 10)))
	}
	alone := []rival{{"redsync", goRedis, sentBySetters, openPeer(peers.Redsync, peers.Settings{Pause: pause})}}
	return peer{
		lib: peers.Redsync, rivals: alone, soloists: alone,
		takers: []takerEntry{
			// By default it waits for the answers of all servers, or their timeouts.
			{name: "redsync", sends: sentBySetters, open: openPeerQuorum(peers.Redsync, peers.Settings{})},
			{name: failFast, sends: sentBySetters, open: openPeerQuorum(peers.Redsync, peers.Settings{FailFast: true})},
		},
	}
}

// rueidislockPeer goes with and without NoLoopTracking, which its documentation recommends: under contention that has a fifth
// to a half of the hand-overs within one process and as many among Lockers.
func rueidislockPeer() peer {
	kept := func(noLoop bool) peers.Settings {
		return peers.Settings{NoLoop: noLoop, Lease: heldLease, Renewal: heldRenewal}
	}
	both := []rival{
		{"rueidislock", "rueidis", sentByRueidis, openPeer(peers.Rueidislock, peers.Settings{Renewal: lease / 3})},
		{"rueidislock (NOLOOP)", "rueidis", sentByRueidis, openPeer(peers.Rueidislock, peers.Settings{Renewal: lease / 3, NoLoop: true})},
	}
	return peer{
		lib: peers.Rueidislock, rivals: both, soloists: both,
		keepers: []keeperEntry{
			{"rueidislock (NOLOOP)", sentByRueidis, openPeerKeeper(peers.Rueidislock, kept(true)), 0},
			// Each of its renewals changes the key, which calls for the next one at once: it takes all processors at any number.
			{"rueidislock", sentByRueidis, openPeerKeeper(peers.Rueidislock, kept(false)), 1000},
		},
	}
}

func init() {
	for _, p := range []peer{redislockPeer(), redsyncPeer(), rueidislockPeer()} {
		if p.lib.Present() {
			rivals = append(rivals, p.rivals...)
			soloists = append(soloists, p.soloists...)
			mixers = append(mixers, p.rivals[0])
			takers = append(takers, p.takers...)
			keepers = append(keepers, p.keepers...)
			contenders = append(contenders, contenderBy(p.lib, p.soloists[len(p.soloists)-1].sends))
		}
	}
}

// theirs is a library of others.
type theirs struct {
	lib    *peers.Library
	locker peers.Locker
}

func openPeer(lib *peers.Library, s peers.Settings) func(*target) (waiter, error) {
	return func(t *target) (waiter, error) {
		s := s
		s.Clients, s.Addrs, s.Lease, s.Unwatched = []*redis.Client{t.rdb}, []string{t.addr}, cmp.Or(s.Lease, lease), true
		locker, err := lib.Open(s)
		return theirs{lib, locker}, err
	}
}

func (t theirs) try(ctx context.Context, key string) (held, error) { return t.locker.Try(ctx, key) }

func (t theirs) acquire(ctx context.Context, key string) (held, error) {
	if t.lib.Bounded {
		return peers.Outliving(ctx, key, t.locker.Acquire)
	}
	return t.locker.Acquire(ctx, key)
}

func (t theirs) ping(ctx context.Context) error { return t.locker.Ping(ctx) }

func (t theirs) close() error {
	t.locker.Close()
	return nil
}

// theirQuorum is a library of others on several servers.
type theirQuorum struct {
	locker  peers.Locker
	clients []*redis.Client
}

func openPeerQuorum(lib *peers.Library, s peers.Settings) func([]string, int) (trier, error) {
	return func(addrs []string, pool int) (trier, error) {
		s := s
		s.Clients, s.Lease = dial(addrs, pool), lease
		locker, err := lib.Open(s)
		return theirQuorum{locker, s.Clients}, err
	}
}

func (t theirQuorum) try(ctx context.Context, key string) (held, error) {
	lock, err := t.locker.Try(ctx, key)
	if err != nil {
		return nil, err
	}
	return releaser(func(ctx context.Context) error { return within(ctx, lock.Release) }), nil
}

func (t theirQuorum) close() error { return closeAll(t.clients) }

// theirKeeper is a library of others that renews by itself.
type theirKeeper struct {
	locker peers.Locker
	mu     sync.Mutex // guards held
	held   []peers.Lock
}

func openPeerKeeper(lib *peers.Library, s peers.Settings) func(context.Context, string) (keeper, error) {
	return func(_ context.Context, addr string) (keeper, error) {
		s := s
		s.Addrs = []string{addr}
		locker, err := lib.Open(s)
		return &theirKeeper{locker: locker}, err
	}
}

func (k *theirKeeper) hold(ctx context.Context, key string) error {
	lock, err := k.locker.Acquire(ctx, key)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, lock)
	return nil
}

func (k *theirKeeper) lost() (n int) {
	for _, lock := range k.held {
		if lock.Lost() != nil {
			n++
		}
	}
	return n
}

func (k *theirKeeper) close() error {
	k.locker.Close()
	return nil
}
