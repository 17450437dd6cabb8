package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/redis/go-redis/v9"
)

// servers is what the replicas share.
type servers struct {
	redisAddr string // or a URL
	redis     *redis.Options
	redisName string
	database  *database
	embedded  *miniredis.Miniredis
}

// openServers makes sure that both servers answer. An empty address or URL stands for the embedded one.
func openServers(ctx context.Context, redisAddr, databaseURL string) (_ *servers, err error) {
	s := &servers{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if redisAddr == "" {
		if s.embedded, err = backend.Miniredis(); err != nil {
			return nil, err
		}
		redisAddr, s.redisName = s.embedded.Addr(), "embedded (miniredis)"
	}
	s.redisAddr = redisAddr
	if s.redis, err = backend.RedisOptions(redisAddr); err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	if s.redisName == "" {
		s.redisName = s.redis.Addr
	}
	if s.database, err = openDatabase(databaseURL); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := pingRedis(ctx, s.redis); err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: no Redis at %s: %w", s.redis.Addr, err)
	}
	if err := s.database.ping(ctx); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: no database (%s): %w", s.database.name, err)
	}
	return s, nil
}

func (s *servers) close() error {
	if s.embedded != nil {
		s.embedded.Close()
	}
	if s.database != nil {
		return s.database.close()
	}
	return nil
}

func pingRedis(ctx context.Context, o *redis.Options) error {
	once := *o
	once.ContextTimeoutEnabled = true
	once.MaxRetries, once.DialerRetries = -1, 1 // a wrong address should say so at once
	client := redis.NewClient(&once)
	return errors.Join(client.Ping(ctx).Err(), client.Close())
}
