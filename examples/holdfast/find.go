package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// scanCount is how many keys Redis looks at for one SCAN, while others wait: well below a millisecond.
	scanCount = 500
	// batch is how many reads share a pipeline.
	batch = 128
	// valueHead is how much of a value is read: as long as holdfast's own can be.
	valueHead = 22 + len(":") + 64
)

// search looks for the keys of locks.
type search struct {
	pattern string
	all     bool // also those without companions

	mu   sync.Mutex // guards what follows: the masters of a Cluster are scanned at once
	keys map[string]bool
}

// find returns the keys that match, sorted. A lock that comes or goes meanwhile may or may not be among them, and in a
// Cluster one whose slot moves. With an error it returns those that were found.
func find(ctx context.Context, client redis.UniversalClient, pattern string, all bool) ([]string, error) {
	s := &search{pattern: pattern, all: all, keys: map[string]bool{}}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return s.scan(ctx, master) })
	} else {
		err = s.scan(ctx, client)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.keys)), err
}

// scan goes through the keys of one server. SCAN stops after each few hundred of them, unlike KEYS, which keeps everybody
// waiting until it is through.
func (s *search) scan(ctx context.Context, server redis.Cmdable) error {
	for cursor := uint64(0); ; {
		names, next, err := server.Scan(ctx, cursor, s.scanPattern(), scanCount).Result()
		if err == nil {
			err = s.sort(ctx, server, names)
		}
		if err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// scanPattern matches all names that matter, and as few others as one pattern can.
func (s *search) scanPattern() string {
	around := "*"
	if s.pattern != "*" {
		around = "*" + s.pattern + "*"
	}
	if s.all {
		return around
	}
	return around + companion + "*"
}

// sort keeps the locks that names tell of.
func (s *search) sort(ctx context.Context, server redis.Cmdable, names []string) error {
	var found, candidates []string
	for _, name := range names {
		if key, ok := lockOf(name); ok && glob(s.pattern, key) {
			found = append(found, key)
		} else if _, ok := baseOf(name); s.all && ok && glob(s.pattern, name) {
			candidates = append(candidates, name)
		}
	}
	for chunk := range slices.Chunk(candidates, batch) {
		values, err := heads(ctx, server, chunk)
		if err != nil {
			return err
		}
		for i, value := range values {
			if lockValue(value) {
				found = append(found, chunk[i])
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range found {
		s.keys[key] = true
	}
	return nil
}

// heads reads the beginnings of strings; "" for keys of other types, and those that are gone or move.
func heads(ctx context.Context, server redis.Cmdable, keys []string) ([]string, error) {
	values := make([]string, len(keys))
	cmds, _ := server.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.GetRange(ctx, key, 0, int64(valueHead))
		}
		return nil
	})
	for i, cmd := range cmds {
		value, err := cmd.(*redis.StringCmd).Result()
		if err != nil && !ofKey(err) {
			return nil, err
		}
		values[i] = value
	}
	return values, nil
}

// ofKey tells the errors that are about one key from those of a server.
func ofKey(err error) bool {
	for _, code := range []string{"WRONGTYPE", "MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return errors.Is(err, redis.Nil)
}
