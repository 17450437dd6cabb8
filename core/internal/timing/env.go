package timing

import (
	"context"
	"time"
)

// An Env is what all parts of a Locker share.
type Env struct {
	Clock  Clock
	Timers Timers
	Gate   *Gate
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

// Why is the reason that a wait ended.
type Why int

const (
	Told    Why = iota // what the wait was for has happened
	Ended              // the context has ended
	Elapsed            // the time has passed
)

// Await waits until done is signalled, ctx ends, or d has passed. done can be nil, and d can be Forever.
func (e *Env) Await(ctx context.Context, done <-chan struct{}, d time.Duration) Why {
	var over <-chan time.Time
	if d < Forever {
		timer := e.Timers.Get(d)
		defer e.Timers.Rest(timer)
		over = timer.C
	}
	select {
	case <-done:
		return Told
	case <-ctx.Done():
		return Ended
	case <-over:
		return Elapsed
	}
}
