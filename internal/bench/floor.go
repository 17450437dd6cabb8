package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	errHeld = errors.New("the key is held")
	errLost = errors.New("the key was lost")
)

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// floor is the least that a correct lock on one Redis does: SET with NX and PX and a value of its own, and a
// script that deletes the key if it still has that value. No renewal, no fencing token, no loss detection, no
// answer within the caller's deadline.
type floor struct{ rdb *redis.Client }

func openFloor(t *target) (contender, error) { return floor{t.rdb}, nil }

func (f floor) cycle(ctx context.Context, key string) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	value := base64.RawURLEncoding.EncodeToString(id[:])
	// Not go-redis' SetNX: that sends EX where the lease is whole seconds.
	set := redis.NewStatusCmd(ctx, "set", key, value, "nx", "px", int64(lease/time.Millisecond))
	if err := f.rdb.Process(ctx, set); errors.Is(err, redis.Nil) {
		return errHeld
	} else if err != nil {
		return err
	}
	deleted, err := compareAndDelete.Run(ctx, f.rdb, []string{key}, value).Int()
	if err == nil && deleted != 1 {
		return errLost
	}
	return err
}

func (f floor) close() error { return nil }
