package peers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Plain is the lock of the Redis documentation for one server, the least that a correct one does: SET with NX and PX and a
// value of its own, and a script that deletes the key if it still has that value. Acquire polls, if it has a Pause.
var Plain = &Library{Name: "SET NX PX", open: func(s Settings) (Locker, error) {
	return plain{overGoRedis{s.Clients}, s, s.Lease.Milliseconds()}, nil
}}

type plain struct {
	overGoRedis
	Settings
	px any
}

type plainLock struct {
	rdb        *redis.Client
	key, value string
}

func (p plain) Try(ctx context.Context, key string) (Lock, error) {
	value := p.Value
	if value == "" {
		value = RandomValue()
	}
	if err := Set(ctx, p.clients[0], key, value, p.px); err != nil {
		return nil, err
	}
	return &plainLock{p.clients[0], key, value}, nil
}

func (p plain) Acquire(ctx context.Context, key string) (Lock, error) {
	for tries := 1; ; tries++ {
		l, err := p.Try(ctx, key)
		if p.Pause == nil || !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(p.Pause(tries)):
		}
	}
}

func (l *plainLock) Release(ctx context.Context) error { return Delete(ctx, l.rdb, l.key, l.value) }

func (l *plainLock) Extend(ctx context.Context, lease time.Duration) error {
	return Expire(ctx, l.rdb, l.key, l.value, lease)
}

func (l *plainLock) Lost() error { return nil }

// RandomValue is one that nobody else has. It takes one allocation less than rand.Text.
func RandomValue() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// Set sets a key that is free to value for px ms, an int64, or fails with ErrHeld. A caller that sets many has px made an
// any but once, which is an allocation.
func Set(ctx context.Context, rdb *redis.Client, key, value string, px any) error {
	// Not go-redis' SetNX: that sends EX where the lease is whole seconds.
	set := redis.NewStatusCmd(ctx, "set", key, value, "nx", "px", px)
	return mark(rdb.Process(ctx, set), ErrHeld, redis.Nil)
}

var (
	compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
	compareAndExpire = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`)
)

// Delete deletes a key that still has value, or fails with ErrNotHeld.
func Delete(ctx context.Context, rdb *redis.Client, key, value string) error {
	return did(compareAndDelete.Run(ctx, rdb, []string{key}, value).Int())
}

// Expire gives a key that still has value a new lease, or fails with ErrNotHeld.
func Expire(ctx context.Context, rdb *redis.Client, key, value string, lease time.Duration) error {
	return did(compareAndExpire.Run(ctx, rdb, []string{key}, value, lease.Milliseconds()).Int())
}

func did(n int, err error) error {
	if err == nil && n == 0 {
		return ErrNotHeld
	}
	return err
}
