package shop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/examples/internal/backend"
)

const (
	// Goodbye bounds a clean-up, which also runs after Ctrl-C.
	Goodbye = 10 * time.Second
	// slowStart is how long the servers are given to answer at first. If nobody listens on the port, that fails at once.
	slowStart = 15 * time.Second
)

// Servers is what the replicas share.
type Servers struct {
	Prefix    string // of every table and of every key
	Redis     *redis.Options
	RedisName string // for humans
	Database  *Database
	redisAddr string // or a URL
	embedded  *miniredis.Miniredis
}

// OpenServers checks that both servers answer. An empty address or URL stands for the embedded server.
func OpenServers(ctx context.Context, redisAddr, databaseURL string) (_ *Servers, err error) {
	s := &Servers{Prefix: fmt.Sprintf("holdfast_tour_%08x", rand.Uint32())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if redisAddr == "" {
		if s.embedded, err = backend.Miniredis(); err != nil {
			return nil, err
		}
		redisAddr, s.RedisName = s.embedded.Addr(), "embedded (miniredis)"
	}
	s.redisAddr = redisAddr
	if s.Redis, err = backend.RedisOptions(redisAddr); err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	if s.RedisName == "" {
		s.RedisName = s.Redis.Addr
	}
	if s.Redis.ReadTimeout == 0 { // asynq has no other bound, and the default is 3 s; holdfast has its own
		s.Redis.ReadTimeout, s.Redis.WriteTimeout = patience, patience
	}
	if s.Database, err = openDatabase(databaseURL); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, slowStart)
	defer cancel()
	if err := pingRedis(ctx, s.Redis); err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: no Redis at %s: %w", s.Redis.Addr, err)
	}
	if err := s.Database.ping(ctx); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: no database (%s): %w", s.Database.Name, err)
	}
	return s, nil
}

// Embedded reports whether Redis is embedded in this program.
func (s *Servers) Embedded() bool { return s.embedded != nil }

// Close stops the embedded servers.
func (s *Servers) Close() error {
	if s.embedded != nil {
		s.embedded.Close()
	}
	if s.Database != nil {
		return s.Database.close()
	}
	return nil
}

// Books makes the tables of a scene, which closeBooks drops.
func (s *Servers) Books(ctx context.Context, scene string, products []string, stock int) (_ *Store, closeBooks func() error, err error) {
	books, err := s.Store(scene)
	if err != nil {
		return nil, nil, err
	}
	closeBooks = func() error {
		return AtEnd(ctx, func(ctx context.Context) error { return errors.Join(books.drop(ctx), books.Close()) })
	}
	if err := books.create(ctx, products, stock); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("create tables: %w", err), closeBooks())
	}
	return books, closeBooks, nil
}

// Catalogue names n products.
func Catalogue(n int) []string {
	names := []string{"lamp", "chair", "teapot", "bicycle", "umbrella", "kettle", "guitar", "tent"}
	for len(names) < n {
		names = append(names, fmt.Sprintf("product-%d", len(names)+1))
	}
	return names[:n]
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AtEnd runs shutdown with a time of its own, which Ctrl-C does not cut short.
func AtEnd(ctx context.Context, shutdown func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Goodbye)
	defer cancel()
	return shutdown(ctx)
}

func pingRedis(ctx context.Context, o *redis.Options) error {
	once := *o
	once.ContextTimeoutEnabled = true
	once.MaxRetries, once.DialerRetries = -1, 1 // a wrong address should say so at once
	client := redis.NewClient(&once)
	// go-redis logs a dial that fails. What is printed next says all that there is to say.
	conn, err := client.Options().Dialer(ctx, client.Options().Network, o.Addr)
	if err == nil {
		_ = conn.Close()
		err = client.Ping(ctx).Err()
	}
	return errors.Join(err, client.Close())
}
