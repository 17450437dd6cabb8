package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// keeper holds locks and renews them. hold may be called concurrently.
type keeper interface {
	hold(ctx context.Context, key string) error
	lost() int // how many of the locks are gone
	close() error
}

// keeperEntry is a keeper before the race.
type keeperEntry struct {
	name  string
	sends []string
	open  func(ctx context.Context, addr string) (keeper, error)
	most  int // how many locks it is measured with at most; 0: as many as the others
}

// keepers are measured in turns, the peers behind these. The first one is what the others are compared with.
var keepers = []keeperEntry{
	{timer, sentBySetters, openTickers, 0},
	{us, sentByHoldfast, openHolder, 0},
}

// warmed is a client whose connections are open.
func warmed(ctx context.Context, addr string) (*redis.Client, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	var wg sync.WaitGroup
	failures := make([]error, heldHands)
	for i := range failures {
		wg.Go(func() {
			for range 10 {
				failures[i] = errors.Join(failures[i], rdb.Ping(ctx).Err())
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return rdb, nil
}

// holder is holdfast.
type holder struct {
	locker *holdfast.Locker
	rdb    *redis.Client
	mu     sync.Mutex // guards locks
	locks  []*holdfast.Lock
}

func openHolder(ctx context.Context, addr string) (keeper, error) {
	rdb, err := warmed(ctx, addr)
	if err != nil {
		return nil, err
	}
	locker, err := holdfast.New(rdb, holdfast.WithTTL(heldLease))
	return &holder{locker: locker, rdb: rdb}, err
}

func (h *holder) hold(ctx context.Context, key string) error {
	lock, err := h.locker.Acquire(ctx, key)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.locks = append(h.locks, lock)
	return nil
}

func (h *holder) lost() (n int) {
	for _, lock := range h.locks {
		if lock.Err() != nil {
			n++
		}
	}
	return n
}

// close drops the locks: nobody waits for them.
func (h *holder) close() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.locker.Shutdown(now); err != nil && !errors.Is(err, context.Canceled) {
		return errors.Join(err, h.rdb.Close())
	}
	return h.rdb.Close()
}

// tickers is what a program does by itself around a lock that does not renew: a goroutine for each, which extends it.
type tickers struct {
	rdb  *redis.Client
	stop context.CancelFunc
	ctx  context.Context // ends with close
	wg   sync.WaitGroup
	gone atomic.Int64
}

func openTickers(ctx context.Context, addr string) (keeper, error) {
	rdb, err := warmed(ctx, addr)
	if err != nil {
		return nil, err
	}
	t := &tickers{rdb: rdb}
	t.ctx, t.stop = context.WithCancel(ctx)
	return t, nil
}

func (t *tickers) hold(ctx context.Context, key string) error {
	value := peers.RandomValue()
	if err := peers.Set(ctx, t.rdb, key, value, int64(lease/time.Millisecond)); err != nil {
		return err
	}
	t.wg.Go(func() { t.renew(key, value) })
	return nil
}

// renew tries again at the next tick, as long as the lease lasts.
func (t *tickers) renew(key, value string) {
	tick := time.NewTicker(heldRenewal)
	defer tick.Stop()
	for until := time.Now().Add(heldLease); ; {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		err := peers.Expire(t.ctx, t.rdb, key, value, heldLease)
		switch {
		case t.ctx.Err() != nil:
			return
		case err == nil:
			until = began.Add(heldLease)
		case errors.Is(err, peers.ErrNotHeld) || time.Now().After(until):
			t.gone.Add(1)
			return
		}
	}
}

func (t *tickers) lost() int { return int(t.gone.Load()) }

func (t *tickers) close() error {
	t.stop()
	t.wg.Wait()
	return t.rdb.Close()
}
