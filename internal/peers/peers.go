// Package peers has the ways to take locks that holdfast is tested with and measured beside: the libraries of others, the
// algorithms of others that have no library in Go, and [Plain], the lock of the Redis documentation. What they have in
// common is an interface, and how each is made and called is written here alone; how it is best set up for a purpose is for
// those to say who have the purpose.
//
// What imports a library is in a file of its own, which a build tag leaves out where its module cannot be had:
// without_redislock, without_redsync or without_rueidis.
package peers

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Library is a way to take locks.
type Library struct {
	Name   string
	Module string // none of Plain and of an algorithm that is written here
	Tag    string // of the build, which leaves it out
	Prefix string // of the key in Redis, before that of the caller
	// Bounded libraries mean a context for the lock as well as for the call: the lock ends with it. See [Outliving].
	Bounded bool

	open func(s Settings) (Locker, error) // nil where it is left out
}

var (
	// Redislock leaves renewal to its caller.
	Redislock = &Library{Name: "redislock", Module: "github.com/bsm/redislock", Tag: "without_redislock"}
	// Redsync leaves renewal to its caller too. It takes locks on one Redis, or on a majority of several.
	Redsync = &Library{Name: "redsync", Module: "github.com/go-redsync/redsync/v4", Tag: "without_redsync"}
	// Rueidislock renews by itself. It waits for Redis' client-side caching to say that the key has changed.
	Rueidislock = &Library{Name: "rueidislock", Module: "github.com/redis/rueidis", Tag: "without_rueidis",
		Prefix: "rueidislock:0:", Bounded: true}
)

// Libraries are those of others.
func Libraries() []*Library { return []*Library{Redislock, Redsync, Rueidislock} }

// Semaphores are the algorithms of others that let several hold one lock. All of them are written here.
func Semaphores() []*Library {
	return []*Library{RedissonPermits, RedissonSemaphore, RedisSemaphore, ByHand}
}

// Present is whether this program was built with it.
func (l *Library) Present() bool { return l.open != nil }

// Open returns a Locker that is set up so.
func (l *Library) Open(s Settings) (Locker, error) {
	if !l.Present() {
		return nil, errors.New(l.Name + " is left out of this program")
	}
	return l.open(s)
}

// Key is the name that the lock on name has in Redis.
func (l *Library) Key(name string) string { return l.Prefix + name }

// Settings are what the libraries let their users choose. A zero is the library's default.
type Settings struct {
	// Clients are what the commands go through, several where there are independent masters. They stay the caller's.
	Clients []*redis.Client
	// Addrs is where rueidislock's own client finds the Redis.
	Addrs []string

	Lease time.Duration
	// Limit is how many may hold a lock of a semaphore.
	Limit int
	// Clock is that of the client, where commands of a semaphore carry it.
	Clock func() time.Time
	// Value is that of the key, where the caller may choose it: not rueidislock's.
	Value string
	// Pause is that of Acquire after so many tries, of those that poll. By default redislock and Plain try once, and redis-semaphore
	// pauses for 10 ms, and ByHand for 200.
	Pause func(tries int) time.Duration
	// ExtendPause is that of Extend, of redislock. By default it tries once.
	ExtendPause func(tries int) time.Duration
	// FailFast has redsync return as soon as a majority has answered.
	FailFast bool
	// TimeoutFactor is for how large a part of the lease redsync waits for an answer, a twentieth by default.
	TimeoutFactor float64
	// Renewal is how often rueidislock renews, by default after half a lease.
	Renewal time.Duration
	// WriteTimeout is how long rueidislock's connections may take to answer.
	WriteTimeout time.Duration
	// Unwatched spares rueidislock's locks an allocation, for benchmarks that count them and do not ask whether a lock is Lost.
	Unwatched bool
	// NoLoop spares rueidislock the news of its own commands.
	NoLoop bool
}

// Locker takes locks. Its methods may be called concurrently. Errors read as the library words them.
type Locker interface {
	// Try takes the lock or fails with ErrHeld.
	Try(ctx context.Context, key string) (Lock, error)
	// Acquire waits for it until ctx ends.
	Acquire(ctx context.Context, key string) (Lock, error)
	// Ping is one round trip on a connection of the kind that the lock's commands take.
	Ping(ctx context.Context) error
	Close()
}

// Lock is a lock that somebody took.
type Lock interface {
	// Release fails with ErrNotHeld where the library says that the lock was not the caller's any more.
	Release(ctx context.Context) error
	// Extend fails so too. Redsync and rueidislock know no lease but that of the Settings.
	Extend(ctx context.Context, lease time.Duration) error
	// Lost is nil while the holder may go on, by all that the library tells it without asking Redis.
	Lost() error
}

var (
	ErrHeld    = errors.New("held by somebody else")
	ErrNotHeld = errors.New("not held any more")
)

// marked is an error of a library that is a mark too.
type marked struct {
	error
	mark error
}

func (m marked) Unwrap() []error { return []error{m.error, m.mark} }

// mark marks err if it is another.
func mark(err, mark, is error) error {
	if errors.Is(err, is) {
		return marked{err, mark}
	}
	return err
}

// found keeps a nil of lock's own type out of the interface.
func found[L Lock](lock L, err error) (Lock, error) {
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// overGoRedis is what Lockers with go-redis' clients have in common.
type overGoRedis struct{ clients []*redis.Client }

func (g overGoRedis) Ping(ctx context.Context) error { return g.clients[0].Ping(ctx).Err() }

func (g overGoRedis) Close() {}

// Outliving has take, a method of a Bounded library's Locker, take a lock that stays when ctx ends: it gives the lock a
// context of its own.
func Outliving(ctx context.Context, key string, take func(ctx context.Context, key string) (Lock, error)) (Lock, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	lock, err := take(own, key)
	ended := !stop() // own too, so that the lock is gone or about to
	if err == nil && !ended {
		return outliving{lock, cancel}, nil
	}
	if err == nil {
		_ = lock.Release(ctx) // a Bounded library's waits for the answer by itself
	}
	cancel()
	if ended {
		return nil, ctx.Err() // what a library returns where ctx is its own
	}
	return nil, err
}

type outliving struct {
	Lock
	cancel context.CancelFunc
}

func (l outliving) Release(ctx context.Context) error {
	defer l.cancel()
	return l.Lock.Release(ctx)
}
