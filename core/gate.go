package core

import (
	"context"
	"sync"
	"sync/atomic"
)

// gate counts what a Locker has under way (calls, held locks, goroutines), so that Shutdown can refuse more
// and wait for the rest. A sync.WaitGroup could not be waited for with a context.
type gate struct {
	n       atomic.Int64
	once    sync.Once
	closing chan struct{}
	idle    chan struct{} // capacity 1; written when n falls to 0 after closing

	over    context.Context // ends with Shutdown, and what goes on in the background with it
	abandon context.CancelFunc
}

func newGate() *gate {
	g := &gate{closing: make(chan struct{}), idle: make(chan struct{}, 1)}
	g.over, g.abandon = context.WithCancel(context.Background())
	return g
}

// enter counts one more, unless the gate is closing. Counting comes before looking: Shutdown closes first
// and counts afterwards, so that one of the two sees the other.
func (g *gate) enter() bool {
	g.n.Add(1)
	if g.closed() {
		g.leave()
		return false
	}
	return true
}

// join counts one more on behalf of something that was counted already.
func (g *gate) join() { g.n.Add(1) }

func (g *gate) leave() {
	if g.n.Add(-1) == 0 && g.closed() {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *gate) closed() bool {
	select {
	case <-g.closing:
		return true
	default:
		return false
	}
}

func (g *gate) close() { g.once.Do(func() { close(g.closing) }) }

// wait returns nil once nothing is under way after close.
func (g *gate) wait(ctx context.Context) error {
	for g.n.Load() != 0 {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select { // for another one that waits
	case g.idle <- struct{}{}:
	default:
	}
	return nil
}
