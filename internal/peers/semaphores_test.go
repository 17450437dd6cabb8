package peers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// eachSemaphore runs fn with a way to open Lockers with clients of their own.
func eachSemaphore(t *testing.T, fn func(t *testing.T, lib *Library, open func(Settings) Locker)) {
	s := servertest.Redis(t)
	for _, lib := range Semaphores() {
		t.Run(lib.Name, func(t *testing.T) {
			fn(t, lib, func(set Settings) Locker {
				set.Clients = append(set.Clients, s.Client())
				l, err := lib.Open(set)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(l.Close)
				return l
			})
		})
	}
}

func TestSemaphoreAdmitsAsManyAsItsLimit(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, lib *Library, open func(Settings) Locker) {
		const limit, turns = 3, 20
		key := "limit:" + lib.Name
		var inside, most atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			l := open(Settings{Lease: time.Minute, Limit: limit, Pause: soon})
			for range 4 {
				all.Go(func() {
					for range turns {
						lock, err := l.Acquire(t.Context(), key)
						if err != nil {
							t.Error(err)
							return
						}
						n := inside.Add(1)
						for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
						}
						time.Sleep(100 * time.Microsecond)
						inside.Add(-1)
						if err := lock.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		if n := most.Load(); n != limit {
			t.Errorf("at most %d were inside, want %d", n, limit)
		}
		l := open(Settings{Lease: time.Minute, Limit: limit})
		for range limit {
			if _, err := l.Try(t.Context(), key); err != nil {
				t.Errorf("afterwards, when all places are free: %v", err)
			}
		}
		if _, err := l.Try(t.Context(), key); !errors.Is(err, ErrHeld) {
			t.Errorf("beyond the limit: got %v, want ErrHeld", err)
		}
	})
}

// A place whose holder has died is free when its lease is over, but for the semaphore that only counts.
func TestSemaphoreHasLeases(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, lib *Library, open func(Settings) Locker) {
		const lease = 300 * time.Millisecond
		l, key, began := open(Settings{Lease: lease, Limit: 1}), "lease:"+lib.Name, time.Now()
		if _, err := l.Try(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*lease)
		defer cancel()
		_, err := l.Acquire(ctx, key)
		if got, want := err == nil, lib != RedissonSemaphore; got != want || time.Since(began) < lease-5*time.Millisecond {
			t.Errorf("after %v: got %v", time.Since(began), err)
		}
	})
}

func TestSemaphoreOfAMajority(t *testing.T) {
	var clients []*redis.Client
	for range 3 {
		clients = append(clients, servertest.Redis(t).Client())
	}
	l, err := RedisSemaphore.Open(Settings{Clients: clients, Lease: time.Minute, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := l.Try(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	clients[0].Del(t.Context(), "k")
	if _, err := l.Try(t.Context(), "k"); !errors.Is(err, ErrHeld) {
		t.Errorf("beside a holder: got %v, want ErrHeld", err)
	}
	if n := clients[0].Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("an attempt without a majority was not undone")
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(clients, func(c *redis.Client) bool { return c.Exists(t.Context(), "k").Val() != 0 }) {
		t.Error("something is left")
	}
}
