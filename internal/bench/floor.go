package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// floor is the least that a correct lock on one Redis does: SET with NX and PX and a value of its own, and a
// script that deletes the key if it still has that value. No renewal, no fencing token, no loss detection, no
// answer within the caller's deadline.
type floor struct{ rdb *redis.Client }

func openFloor(t *target) (waiter, error) { return floor{t.rdb}, nil }

type floorLock struct {
	rdb        *redis.Client
	key, value string
}

func (f floor) try(ctx context.Context, key string) (held, error) {
	value := randomValue()
	if err := setOne(ctx, f.rdb, key, value); err != nil {
		return nil, err
	}
	return &floorLock{f.rdb, key, value}, nil
}

func (l *floorLock) Release(ctx context.Context) error { return deleteOne(ctx, l.rdb, l.key, l.value) }

// acquire does not wait: the floor takes part only where keys are free.
func (f floor) acquire(ctx context.Context, key string) (held, error) { return f.try(ctx, key) }

func (f floor) ping(ctx context.Context) error { return f.rdb.Ping(ctx).Err() }
func (f floor) close() error                   { return nil }

func randomValue() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func setOne(ctx context.Context, c *redis.Client, key, value string) error {
	// Not go-redis' SetNX: that sends EX where the lease is whole seconds.
	set := redis.NewStatusCmd(ctx, "set", key, value, "nx", "px", int64(lease/time.Millisecond))
	err := c.Process(ctx, set)
	if errors.Is(err, redis.Nil) {
		return errHeld
	}
	return err
}

func deleteOne(ctx context.Context, c *redis.Client, key, value string) error {
	deleted, err := compareAndDelete.Run(ctx, c, []string{key}, value).Int()
	if err == nil && deleted != 1 {
		return errLost
	}
	return err
}
