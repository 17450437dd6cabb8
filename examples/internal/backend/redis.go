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
	scheme, rest, isURL := strings.Cut(addr, "://")
	if !isURL && !strings.ContainsAny(addr, "@/?#") {
		return &redis.Options{Addr: addr}, nil
	}
	options, err := redis.ParseURL(addr)
	// Where a password has / ? or #, what is left of it is the host or the port, which the text of a failed dial contains.
	i := strings.IndexAny(rest, "/?#")
	if err != nil || strings.ContainsAny(scheme, "/?#@:") || i >= 0 && strings.Contains(rest[i:], "@") || strings.Contains(rest, "#") {
		// Not err itself: like the URL, it can contain a password.
		return nil, errors.New("neither host:port nor a redis:// URL; in a password / # ? @ % are %2F %23 %3F %40 %25")
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
