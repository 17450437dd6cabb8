package core

import (
	"context"
	"sync"
	"time"
)

// yielding is the release of a ballot under way: on each master that may have the lock, until it is known to be free
// there or the longest lease is over.
type yielding struct {
	mu       sync.Mutex // guards what follows
	need     int
	open     int
	released int
	lost     int
	all      int
	cause    error
	told     bool

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
	b.yielding = y
	for i, t := range b.won.parts {
		t.sent, t.waiter = max(t.sent, b.sent), b.waiter
		if b.won.mayHave&(1<<i) != 0 {
			t.token = max(t.token, b.token)
		}
		t.tainted = t.tainted || t.renewals > 0 // rule 4
		if !t.settle() {
			y.add(ErrLost, nil) // it refused, and was not asked again
			continue
		}
		b.q.locker.gate.join()
		go func() {
			defer b.q.locker.gate.leave()
			y.add(t.forget(b.q.locker.gate.over, max(b.ttl, b.longest)))
		}()
	}
	return y
}

func (y *yielding) add(outcome, cause error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.open--
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
	timer := b.q.locker.timers.get(limit)
	defer b.q.locker.timers.rest(timer)
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
			return ErrUnavailable, errSilence
		}
		return ErrUnavailable, y.cause
	case y.outcome == ErrUnavailable:
		return y.outcome, y.cause
	}
	return y.outcome, nil
}
