package main

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// others are the libraries of others that this program was built with.
var others []library

func init() {
	add := func(lib *peers.Library, set func(s settings, p *peers.Settings), lacks map[feature]string) {
		if lib.Present() {
			others = append(others, other(lib, set, lacks))
		}
	}
	// With the pause of the examples of its documentation. The watchdog makes use of the retries that the library offers.
	add(peers.Redislock, func(s settings, p *peers.Settings) {
		p.Pause, p.ExtendPause = every(100*time.Millisecond), every(s.lease/30)
	}, map[feature]string{
		fencing:  "this version has no fencing token",
		majority: "it takes locks on one Redis",
	})
	// With its option to return as soon as a majority has answered.
	add(peers.Redsync, func(s settings, p *peers.Settings) {
		p.FailFast = true
		if s.lease <= 5*time.Second {
			// It waits for an answer for a twentieth of the lease: little, where the lease is as short as here only.
			p.TimeoutFactor = 0.2
		}
	}, map[feature]string{
		fencing: "it has no fencing token",
		renewal: "it does not renew by itself; callers extend the lock",
	})
	// As in the example of its README. Its connections are bounded like those of peerClient.
	add(peers.Rueidislock, func(s settings, p *peers.Settings) {
		p.NoLoop, p.WriteTimeout = true, timeoutFor(s.lease)
	}, map[feature]string{
		fencing:  "it has no fencing token",
		identity: "it chooses the value of the key itself",
		measured: "it ends its context by a renewal alone, see partition",
		reports:  "its release returns nothing",
		majority: "its majority is one of keys on one Redis or Cluster",
	})
}

// semaphores are the algorithms of others.
var semaphores = []library{
	semaphore(peers.RedissonPermits, map[feature]string{majority: "it is for one Redis"}),
	semaphore(peers.RedissonSemaphore, map[feature]string{majority: "it is for one Redis"}),
	semaphore(peers.RedisSemaphore, map[feature]string{}),
	semaphore(peers.ByHand, map[feature]string{majority: "it is for one Redis"}),
}

func semaphore(lib *peers.Library, lacks map[feature]string) library {
	lacks[reading], lacks[tenants] = "it has no readers", "it cannot tell tenants apart"
	l := other(lib, func(settings, *peers.Settings) {}, lacks)
	l.alone, l.together = false, true
	return l
}

// floorLibrary polls.
var floorLibrary = other(peers.Plain, func(_ settings, p *peers.Settings) {
	p.Pause = every(100 * time.Millisecond)
}, map[feature]string{
	belief:   "nothing tells the holder",
	renewal:  "it does not renew",
	fencing:  "it has no fencing token",
	majority: "it is for one Redis",
})

func every(pause time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return pause }
}

// libraries are all that there are, in the order of the report.
func libraries() []library {
	return slices.Concat([]library{holdfastLibrary}, others, []library{floorLibrary}, semaphores)
}

// leftOut are the names of the peers that this program was built without.
func leftOut() (names []string) {
	for _, lib := range peers.Libraries() {
		if !lib.Present() {
			names = append(names, lib.Name)
		}
	}
	return names
}

// other is a library that set sets up.
func other(lib *peers.Library, set func(s settings, p *peers.Settings), lacks map[feature]string) library {
	return library{name: lib.Name, module: lib.Module, key: lib.Key, lacks: lacks, alone: true, open: func(s settings) (locker, error) {
		p := peers.Settings{Addrs: s.addrs, Lease: s.lease, Value: s.owner, Limit: s.limit,
			Clock: func() time.Time { return time.Now().Add(s.ahead) }}
		for _, addr := range s.addrs {
			p.Clients = append(p.Clients, peerClient(addr, s.lease))
		}
		set(s, &p)
		l, err := lib.Open(p)
		if err != nil {
			return nil, err
		}
		return theirs{lib, l, p}, nil
	}}
}

type theirs struct {
	lib    *peers.Library
	locker peers.Locker
	peers.Settings
}

func (t theirs) try(ctx context.Context, key string) (lock, error) {
	sent := time.Now()
	got, err := t.take(ctx, key, t.locker.Try)
	return t.found(got, err, sent)
}

// acquire is not told when the last try was sent.
func (t theirs) acquire(ctx context.Context, key string) (lock, error) {
	got, err := t.take(ctx, key, t.locker.Acquire)
	return t.found(got, err, time.Now())
}

// take hands ctx to a bounded library where it ends before the lease could: the library bounds the lease by its deadline.
// Elsewhere ctx is the call's, and the lock is given another.
func (t theirs) take(ctx context.Context, key string,
	with func(context.Context, string) (peers.Lock, error)) (peers.Lock, error) {
	if deadline, ok := ctx.Deadline(); !t.lib.Bounded || ok && time.Until(deadline) < t.Lease {
		return with(ctx, key)
	}
	return peers.Outliving(ctx, key, with)
}

func (t theirs) found(got peers.Lock, err error, sent time.Time) (lock, error) {
	if err != nil {
		return nil, marked(err, errHeld, peers.ErrHeld)
	}
	if t.lib == peers.Redislock {
		return watch(got, sent, t.Lease), nil
	}
	return theirLock{got}, nil
}

func (t theirs) close() {
	t.locker.Close()
	for _, c := range t.Clients {
		_ = c.Close()
	}
}

type theirLock struct{ peers.Lock }

func (l theirLock) release(ctx context.Context) error {
	return marked(l.Release(ctx), errNotHeld, peers.ErrNotHeld)
}

func (l theirLock) lost() error { return l.Lost() }

func (l theirLock) token() int64 { return 0 }
