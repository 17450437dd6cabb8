package interop

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var (
	errRefused = errors.New("rival: somebody else has the key")
	errNotHeld = errors.New("rival: not the holder")
)

// rival is another program that takes locks on the same Redis.
type rival struct {
	name string
	// obtain tries once; errRefused says that somebody else has the key, any other error is a failure.
	obtain func(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error)
}

// holding is a lock that a rival obtained; errNotHeld says that it is no longer the rival's.
type holding interface {
	release(ctx context.Context) error
	extend(ctx context.Context, ttl time.Duration) error
}

var rivals = []rival{
	{"plain SET NX PX", obtainPlain},
	{"redislock", obtainRedislock},
	{"redsync", obtainRedsync},
}

// plain is what a program without a library does, in the words of the Redis documentation.
type plain struct {
	rdb        *redis.Client
	key, value string
}

func obtainPlain(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error) {
	p := plain{rdb, key, rand.Text()}
	err := rdb.Do(ctx, "SET", key, p.value, "NX", "PX", ttl.Milliseconds()).Err()
	if errors.Is(err, redis.Nil) {
		return nil, errRefused
	}
	return p, err
}

func (p plain) release(ctx context.Context) error {
	return p.ifMine(ctx, "redis.call('DEL', KEYS[1])")
}

func (p plain) extend(ctx context.Context, ttl time.Duration) error {
	return p.ifMine(ctx, "redis.call('PEXPIRE', KEYS[1], ARGV[2])", ttl.Milliseconds())
}

func (p plain) ifMine(ctx context.Context, act string, args ...any) error {
	script := fmt.Sprintf("if redis.call('GET', KEYS[1]) == ARGV[1] then return %s end return 0", act)
	n, err := p.rdb.Eval(ctx, script, []string{p.key}, append([]any{p.value}, args...)...).Int()
	if err == nil && n == 0 {
		return errNotHeld
	}
	return err
}

type lockOfRedislock struct{ lock *redislock.Lock }

func obtainRedislock(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error) {
	lock, err := redislock.Obtain(ctx, rdb, key, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errRefused
	}
	return lockOfRedislock{lock}, err
}

func (l lockOfRedislock) release(ctx context.Context) error {
	err := l.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return errNotHeld
	}
	return err
}

func (l lockOfRedislock) extend(ctx context.Context, ttl time.Duration) error {
	err := l.lock.Refresh(ctx, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return errNotHeld
	}
	return err
}

type lockOfRedsync struct{ mutex *redsync.Mutex }

func obtainRedsync(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (holding, error) {
	// Its bound for one call is 5 % of the lease by default: too short for a loaded machine.
	mutex := redsync.New(goredis.NewPool(rdb)).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTimeoutFactor(1))
	err := mutex.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		return nil, errRefused
	}
	return lockOfRedsync{mutex}, err
}

func (l lockOfRedsync) release(ctx context.Context) error {
	return lostOfRedsync(l.mutex.UnlockContext(ctx))
}

// extend asks for the lease it was obtained with, redsync knows no other.
func (l lockOfRedsync) extend(ctx context.Context, _ time.Duration) error {
	return lostOfRedsync(l.mutex.ExtendContext(ctx))
}

func lostOfRedsync(_ bool, err error) error {
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return errNotHeld
	}
	return err
}
