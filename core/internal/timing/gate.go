package timing

import (
	"context"
	"sync"
	"sync/atomic"
)

// A Gate counts what a Locker has under way (calls, held locks, goroutines), so that Shutdown can refuse more and wait
// for the rest. A sync.WaitGroup does not do: waiting for it cannot end with a context.
type Gate struct {
	n       atomic.Int64
	once    sync.Once
	Closing chan struct{} // closed by Close
	idle    chan struct{} // capacity 1; written when n falls to 0 after closing

	Over    context.Context // ends with Shutdown, and ends what goes on in the background
	Abandon context.CancelFunc
}

// NewGate returns an open Gate.
func NewGate() *Gate {
	g := &Gate{Closing: make(chan struct{}), idle: make(chan struct{}, 1)}
	g.Over, g.Abandon = context.WithCancel(context.Background())
	return g
}

// Enter counts one more, unless the gate is closing. It counts first and then looks, and Shutdown closes first and then
// counts, so that one of them always sees the other.
func (g *Gate) Enter() bool {
	g.n.Add(1)
	if g.Closed() {
		g.Leave()
		return false
	}
	return true
}

// Join counts one more on behalf of something that is already counted.
func (g *Gate) Join() { g.n.Add(1) }

func (g *Gate) Leave() {
	if g.n.Add(-1) == 0 && g.Closed() {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *Gate) Closed() bool {
	select {
	case <-g.Closing:
		return true
	default:
		return false
	}
}

func (g *Gate) Close() { g.once.Do(func() { close(g.Closing) }) }

// Wait returns nil once nothing is under way after Close.
func (g *Gate) Wait(ctx context.Context) error {
	for g.n.Load() != 0 {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select { // for another goroutine that waits
	case g.idle <- struct{}{}:
	default:
	}
	return nil
}

// Under returns how much is under way.
func (g *Gate) Under() int64 { return g.n.Load() }
