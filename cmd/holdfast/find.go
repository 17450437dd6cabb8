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
	// scanCount is how many keys Redis examines per SCAN. Other commands wait meanwhile, for well below a millisecond.
	scanCount = 500
	// batch is how many reads share a pipeline.
	batch = 128
	// valueHead is how much of a value is read: the longest that a value of holdfast can be.
	valueHead = 22 + len(":") + 64
)

// search looks for the keys of locks.
type search struct {
	pattern string
	all     bool // include locks without companions

	mu   sync.Mutex // guards what follows: the masters of a Cluster are scanned concurrently
	keys map[string]bool
}

// find returns the keys that match, sorted. A lock that comes or goes meanwhile might be missing, and so might one whose
// Cluster slot moves. With an error, find returns the keys found so far.
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

// scan goes through the keys of one server. SCAN pauses after every few hundred keys, while KEYS would make all other
// clients wait until it is done.
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

// scanPattern returns a pattern that matches all relevant names, and as few others as one pattern can.
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

// sort adds the locks that the names belong to.
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

// heads reads the beginnings of strings. It returns "" for keys that have another type, are gone or are moving.
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

// ofKey reports whether an error is about one key, and not about the server.
func ofKey(err error) bool {
	for _, code := range []string{"WRONGTYPE", "MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return errors.Is(err, redis.Nil)
}
