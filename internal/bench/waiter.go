package main

import "context"

// waiter is one way to wait for a lock that somebody else holds. Its methods may be called concurrently.
type waiter interface {
	// acquire waits for the lock on key until ctx ends; ctx has a deadline. The lock stays held, also after the
	// end of ctx, until release is called once.
	acquire(ctx context.Context, key string) (release func(context.Context) error, err error)
	// ping is one round trip on a connection of the kind that the lock's commands take.
	ping(ctx context.Context) error
	close() error
}

// rival is a waiter before the race.
type rival struct {
	name   string
	client string // whose round trips it makes
	// sends is as in entry. Where subscriptions and connections are kept alive with PING, that counts too.
	sends []string
	open  func(t *target) (waiter, error)
}

const goRedis = "go-redis"

// rivals contend in turns. The first one is what the others are compared with.
var rivals = []rival{
	{"holdfast", goRedis, sentByHoldfast, openWaiting(nil)},
	{"holdfast (no local line)", goRedis, sentByHoldfast, openWaiting(withoutLocalLine)},
	{"redislock", goRedis, []string{"evalsha", "eval"}, openRedislock},
	{"redsync", goRedis, []string{"set", "evalsha", "eval"}, openRedsync},
	{"rueidislock", "rueidis", []string{"evalsha", "eval", "ping"}, openRueidislock},
}
