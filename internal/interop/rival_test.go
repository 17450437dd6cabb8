package interop

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

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

// rivals are joined by the libraries, each from a file of its own, which a build tag leaves out where its module cannot be
// had.
var rivals = []rival{{"plain SET NX PX", obtainPlain}}

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
