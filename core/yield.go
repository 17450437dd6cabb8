package core

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// yielding is the release of a ballot under way: on each master that may have the lock, until it is known to be free
// there or the longest lease is over.
type yielding struct {
	gate  *timing.Gate
	limit time.Duration
	asks  []ask

	mu       sync.Mutex // guards what follows
	need     int
	open     int
	released int
	lost     int
	all      int
	cause    error
	told     bool
	late     *time.Timer
	forced   func() bool // undoes what is to be done at the end of gate.Over

	done    chan struct{} // closed when outcome is set
	outcome error
}

// yield begins it, once.
func (b *ballot) yield() *yielding {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetful = true
	if b.yielding != nil {
		return b.yielding
	}
	n := len(b.q.nodes)
	y := &yielding{need: b.q.need, open: n, all: n, done: make(chan struct{})}
	y.gate, y.limit = b.q.locker.gate, max(b.cfg.ttl, b.longest)
	y.asks = make([]ask, 0, n)
	b.yielding = y
	for i, t := range b.won.parts {
		t.sent, t.waiter = max(t.sent, b.sent), b.waiter
		if b.won.mayHave&(1<<i) != 0 {
			t.token = max(t.token, b.token)
		}
		t.tainted = t.tainted || t.renewals > 0 // rule 4
		if !t.settle() {
			y.add(ErrLost, nil) // it refused, and was not asked again
			if b.lined {
				b.q.resign(i, b.names, b.waiter)
			}
			continue
		}
		y.asks = append(y.asks, ask{tenure: t})
		y.send(&y.asks[len(y.asks)-1])
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.open > 0 {
		y.late = time.AfterFunc(timing.Patience(b.cfg.ttl), y.chase)
		y.forced = context.AfterFunc(y.gate.Over, y.chase)
	}
	return y
}

// ask is the first forget that goes to one master. Nobody waits for it: whoever brings the answer counts it. Only after
// an error, or without an answer in time, a goroutine goes on.
type ask struct {
	*tenure
	call  *redisconn.Call
	taken atomic.Bool // somebody sees to it
}

func (y *yielding) send(a *ask) {
	y.gate.Join()
	a.call = a.sendForget(context.Background(), func(c *redisconn.Call) {
		switch {
		case a.taken.Swap(true):
		case c.Err == nil:
			y.add(a.forgot(c.Val))
			y.gate.Leave()
		default:
			go y.goOn(a, c)
		}
	})
}

func (y *yielding) goOn(a *ask, c *redisconn.Call) {
	defer y.gate.Leave()
	y.add(a.goOn(y.gate.Over, c, y.limit))
}

// chase sees to those that have not been answered.
func (y *yielding) chase() {
	for i := range y.asks {
		if a := &y.asks[i]; !a.taken.Swap(true) {
			go y.goOn(a, a.call)
		}
	}
}

func (y *yielding) add(outcome, cause error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.open--
	if y.open == 0 && y.late != nil {
		y.late.Stop()
		y.forced()
	}
	switch {
	case outcome == nil:
		y.released++
	case outcome == ErrLost:
		y.lost++
	case cause != nil:
		y.cause = cause
	}
	if y.told {
		return
	}
	y.told = true
	switch {
	case y.released >= y.need:
	case y.lost > y.all-y.need:
		y.outcome = ErrLost
	case y.released+y.open < y.need && y.lost+y.open <= y.all-y.need:
		y.outcome = ErrUnavailable
	default:
		y.told = false
		return
	}
	close(y.done)
}

// forget releases on all masters, and waits for most of them for at most a node timeout; the rest goes on in the
// background.
func (b *ballot) forget(ctx context.Context, limit time.Duration) (outcome, cause error) {
	b.over()
	limit = min(limit, b.patience())
	done := ctx.Done()
	if ctx.Err() != nil {
		done, limit = nil, min(limit, releaseGrace)
	}
	y := b.yield()
	timer := b.q.locker.timers.Get(limit)
	defer b.q.locker.timers.Rest(timer)
	select {
	case <-y.done:
	case <-done:
	case <-timer.C:
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	switch {
	case !y.told:
		if y.cause == nil {
			return ErrUnavailable, redisconn.ErrSilence
		}
		return ErrUnavailable, y.cause
	case y.outcome == ErrUnavailable:
		return y.outcome, y.cause
	}
	return y.outcome, nil
}
