package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var floorLibrary = library{
	name: "SET NX PX",
	key:  sameKey,
	open: openFloor,
	lacks: map[feature]string{
		belief:   "nothing tells the holder",
		renewal:  "it does not renew",
		fencing:  "it has no fencing token",
		majority: "it is for one Redis",
	},
}

// floor is the lock of the Redis documentation for one server: SET with NX and PX, and a script that deletes the key
// if it still has the value of the holder. It polls.
type floor struct {
	rdb *redis.Client
	settings
}

func openFloor(s settings) (locker, error) {
	return floor{peerClient(s.addrs[0], s.lease), s}, nil
}

func (f floor) try(ctx context.Context, key string) (lock, error) {
	value := f.owner
	if value == "" {
		value = rand.Text()
	}
	err := f.rdb.Do(ctx, "SET", key, value, "NX", "PX", f.lease.Milliseconds()).Err()
	if err != nil {
		return nil, marked(err, errHeld, redis.Nil)
	}
	return floorLock{f.rdb, key, value}, nil
}

func (f floor) acquire(ctx context.Context, key string) (lock, error) {
	for {
		l, err := f.try(ctx, key)
		if !errors.Is(err, errHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (f floor) close() { _ = f.rdb.Close() }

type floorLock struct {
	rdb        *redis.Client
	key, value string
}

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

func (l floorLock) release(ctx context.Context) error {
	deleted, err := compareAndDelete.Run(ctx, l.rdb, []string{l.key}, l.value).Int()
	if err == nil && deleted == 0 {
		return errNotHeld
	}
	return err
}

func (l floorLock) lost() error { return nil }

func (l floorLock) token() int64 { return 0 }
