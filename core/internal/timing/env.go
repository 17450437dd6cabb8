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

// NewEnv is one whose clock begins now.
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

// Why a wait ended.
type Why int

const (
	Told    Why = iota // what was waited for is there
	Ended              // the context
	Elapsed            // the time
)

// Await waits for done, which may be nil, for at most d, if that is not Forever, unless ctx ends.
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
