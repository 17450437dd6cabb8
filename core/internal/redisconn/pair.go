package redisconn

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Pair sends two commands at once, on one connection, to the master that has key. The second may take until limit,
// whatever the client's ReadTimeout is.
func (n *Conn) Pair(ctx context.Context, key string, limit time.Duration, first, second []any) (val1, val2 any, err error) {
	rdb, err := n.Master(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	if d := rdb.Options().ReadTimeout; d > 0 && d < limit {
		rdb = rdb.WithTimeout(limit) // of the same pool
	}
	// Not a pipeline of the client: newer versions of go-redis have a few connections just for those, and a WAIT would
	// keep them from the renewals.
	conn := rdb.Conn()
	defer conn.Close()
	pipe := conn.Pipeline()
	cmd1, cmd2 := command{redis.NewCmd(ctx, first...)}, command{redis.NewCmd(ctx, second...)}
	_ = pipe.Process(ctx, cmd1) // queues; cannot fail
	_ = pipe.Process(ctx, cmd2)
	_, _ = pipe.Exec(ctx) // each command has its own error
	if val1, err = cmd1.Result(); err == nil {
		val2, err = cmd2.Result()
	}
	if cluster, ok := n.Client.(*redis.ClusterClient); ok && redis.HasErrorPrefix(err, "MOVED") {
		cluster.ReloadState(ctx) // in the background; on its own it does so only for a node that it chose
	}
	return val1, val2, err
}

// Master returns the client of the one server behind n that has key.
func (n *Conn) Master(ctx context.Context, key string) (*redis.Client, error) {
	switch c := n.Client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	default:
		return c.(*redis.Client), nil // check of the store has refused all other types
	}
}
