package timing

import (
	"context"
	"sync/atomic"
	"time"
)

// An Env is what all parts of a Locker share.
type Env struct {
	Clock  Clock
	Timers Timers
	Gate   *Gate
	Held   atomic.Int64 // how many locks are held
}

// NewEnv returns an Env whose clock begins now.
func NewEnv() *Env {
	e := &Env{Gate: NewGate()}
	e.Clock.Start()
	return e
}

func (e *Env) Now() Instant { return e.Clock.Now() }

// Go runs f on a goroutine that the gate counts.
func (e *Env) Go(f func()) {
	e.Gate.Join()
	go func() {
		defer e.Gate.Leave()
		f()
	}()
}

// What Await returns if nothing that it waits for has happened.
const (
	Ended   = -1 // the context has ended
	Elapsed = -2 // the time has passed
)

// Await waits until one of on, at most three channels, is signalled, ctx ends, or d has passed, which can be Forever. It
// returns the index of the channel, Ended or Elapsed. A nil channel is never signalled.
func (e *Env) Await(ctx context.Context, d time.Duration, on ...<-chan struct{}) int {
	var over <-chan time.Time
	if d < Forever {
		timer := e.Timers.Get(d)
		defer e.Timers.Rest(timer)
		over = timer.C
	}
	var c [3]<-chan struct{}
	copy(c[:], on)
	select {
	case <-c[0]:
		return 0
	case <-c[1]:
		return 1
	case <-c[2]:
		return 2
	case <-ctx.Done():
		return Ended
	case <-over:
		return Elapsed
	}
}
