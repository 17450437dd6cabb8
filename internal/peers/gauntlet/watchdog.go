package main

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// watched is a lock of a library that leaves renewal to its caller, with the watchdog of redislock's README, for as long as
// the lease lasts.
type watched struct {
	theirLock
	work context.Context // the holder's
	stop context.CancelFunc
	done chan struct{}
}

// watch is for a lock whose lease began when its command was sent.
func watch(got peers.Lock, sent time.Time, lease time.Duration) lock {
	w := watched{theirLock: theirLock{got}, done: make(chan struct{})}
	w.work, w.stop = context.WithCancel(context.Background())
	go w.renew(sent, lease)
	return w
}

func (w watched) renew(sent time.Time, lease time.Duration) {
	defer close(w.done)
	defer w.stop()
	ticks := time.NewTicker(lease / 3)
	defer ticks.Stop()
	for end := sent.Add(lease); ; {
		select {
		case <-w.work.Done():
			return
		case <-ticks.C:
		}
		sent := time.Now()
		ctx, cancel := context.WithDeadline(w.work, end)
		err := w.Extend(ctx, lease)
		cancel()
		if err != nil {
			return
		}
		end = sent.Add(lease)
	}
}

func (w watched) release(ctx context.Context) error {
	w.stop()
	<-w.done
	return w.theirLock.release(ctx)
}

func (w watched) lost() error { return w.work.Err() }
