// Package backend starts the servers of the tour and of the examples sentinel and cluster. The other examples start their
// servers in plain sight.
package backend

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// RedisOptions returns the options of a client for a host:port or a redis:// URL.
func RedisOptions(addr string) (*redis.Options, error) {
	if !strings.Contains(addr, "://") {
		return &redis.Options{Addr: addr}, nil
	}
	options, err := redis.ParseURL(addr)
	if err != nil {
		return nil, errors.New("not a redis:// URL") // not err itself: like the URL, it can contain a password
	}
	return options, nil
}

// Miniredis starts a Redis in this process, whose keys expire as time goes by. By default miniredis leaves that to the
// caller, and the lease of a crashed holder would never expire.
func Miniredis() (*miniredis.Miniredis, error) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	return server, nil
}
