package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// lease is far longer than a cycle, so that no contender renews within one.
const lease = 15 * time.Second

// contender is one way to take locks. Its methods may be called concurrently.
type contender interface {
	// cycle acquires the lock on key, which is free, and releases it.
	cycle(ctx context.Context, key string) error
	close() error
}

// entry is a contender before the race.
type entry struct {
	name string
	// sends lists the commands that the client sends in a cycle; no script of the contender calls them. Redis
	// counts both alike, so that its statistics do not tell which is which.
	sends []string
	open  func(t *target) (contender, error)
}

// contenders are measured in turns. The first one is what the others are compared with.
var contenders = []entry{
	{"floor", []string{"set", "evalsha", "eval"}, openFloor},
	{"holdfast", []string{"evalsha", "eval"}, openHoldfast},
}

// target is the server as contenders reach it.
type target struct {
	addr string
	rdb  *redis.Client // shared by all that use go-redis
}

func newTarget(addr string, pool int) *target {
	return &target{addr, redis.NewClient(&redis.Options{Addr: addr, PoolSize: pool})}
}

func (t *target) close() error { return t.rdb.Close() }
