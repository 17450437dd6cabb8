// Package backend gives the example programs the servers that they talk to: yours, where a variable of the environment
// names them, or else ones that are gone afterwards.
package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Redis connects to the server at REDIS_ADDR, a host:port or a redis:// URL. Without one it starts a miniredis in this
// process, which other processes do not see.
func Redis(ctx context.Context) (rdb *redis.Client, closeAll func(), err error) {
	addr, stop := os.Getenv("REDIS_ADDR"), func() {}
	if addr == "" {
		server, err := Miniredis()
		if err != nil {
			return nil, nil, err
		}
		addr, stop = server.Addr(), server.Close
	}
	options, err := RedisOptions(addr)
	if err != nil {
		return nil, nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	rdb = redis.NewClient(options)
	closeAll = func() {
		_ = rdb.Close()
		stop()
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		closeAll()
		return nil, nil, fmt.Errorf("no Redis at %s: %w", options.Addr, err)
	}
	return rdb, closeAll, nil
}

// RedisOptions are those of a client for a host:port or a redis:// URL.
func RedisOptions(addr string) (*redis.Options, error) {
	if !strings.Contains(addr, "://") {
		return &redis.Options{Addr: addr}, nil
	}
	options, err := redis.ParseURL(addr)
	if err != nil {
		return nil, errors.New("not a redis:// URL") // its text may hold a password, and so does err
	}
	return options, nil
}

// Miniredis starts a Redis in this process. Its keys expire as time goes by: by default miniredis leaves that to the
// caller, and the lease of a crashed holder would never end.
func Miniredis() (*miniredis.Miniredis, error) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	return server, nil
}
