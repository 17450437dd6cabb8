package gocronlock

import (
	"context"
	"fmt"
	"sync/atomic"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// Elector is a [gocron.Elector]: the replica that leads runs all jobs. Make one with [NewElector], and let its Run run. It is
// safe for concurrent use.
type Elector struct {
	locker *holdfast.Locker
	name   string
	opts   []holdfast.CallOption
	term   atomic.Pointer[holdfast.Lock] // the last one
}

// NewElector returns an Elector for the replicas that give it the same name, which is the key of their lock. opts are those of
// [holdfast.Locker.Lead].
func NewElector(locker *holdfast.Locker, name string, opts ...holdfast.CallOption) *Elector {
	return &Elector{locker: locker, name: name, opts: opts}
}

// Run takes part in the election until ctx ends. It returns what [holdfast.Locker.Lead] returns: start it before the scheduler,
// on a goroutine of its own, and end ctx after the scheduler's Shutdown.
func (e *Elector) Run(ctx context.Context) error {
	return e.locker.Lead(ctx, e.name, func(ctx context.Context) error {
		e.term.Store(holdfast.Held(ctx)[0])
		<-ctx.Done()
		return context.Cause(ctx)
	}, e.opts...)
}

var errNotLeader = fmt.Errorf("gocronlock: this replica does not lead: %w", holdfast.ErrNotAcquired)

// IsLeader returns nil if this replica leads, and otherwise an error that matches [holdfast.ErrNotAcquired]. It compares
// clocks, and so it is right even in a process that has just been paused.
func (e *Elector) IsLeader(context.Context) error {
	if term := e.term.Load(); term == nil || term.Err() != nil {
		return errNotLeader
	}
	return nil
}
