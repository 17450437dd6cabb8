package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
)

// Locker is a [gocron.Locker]. Make one with [New]. It is safe for concurrent use.
type Locker struct {
	clock tick.Clock
	gap   time.Duration
	opts  []holdfast.CallOption
}

// New returns a Locker for jobs whose ticks are more than gap apart. Half of the shortest period is a good gap: a replica
// whose timer fires later than gap after a tick can run that tick again, or miss the next one.
//
// opts are those of the lock. Default: the Locker's, and a wait of gap for a run that is not over. New panics if an argument or
// an option is wrong, with an error that matches [holdfast.ErrInvalid].
func New(locker *holdfast.Locker, gap time.Duration, opts ...holdfast.CallOption) *Locker {
	l := &Locker{gap: gap, opts: append([]holdfast.CallOption{holdfast.WithWait(max(gap, 0))}, opts...)}
	l.clock.Locker, l.clock.Now = locker, time.Now
	if err := l.check(); err != nil {
		panic(fmt.Errorf("gocronlock: New: %w", err))
	}
	return l
}

func (l *Locker) check() error {
	if l.gap <= 0 {
		return fmt.Errorf("%w: a gap of %v: want more than 0", holdfast.ErrInvalid, l.gap)
	}
	if err := tick.Check(l.clock.Locker, key("name"), tick.WithMinGap(l.gap)); err != nil {
		return err
	}
	return l.clock.Locker.Check(key("name"), l.opts...)
}

// key is that of a job's lock, and the name of its ticks. They are cronlock's, so that a program can go from one to the other
// while replicas of both run.
func key(job string) string { return holdfast.Key("cron", job) }

// Lock gives the job a run on this replica. Errors: [holdfast.ErrNotAcquired] if a run of the job began less than gap ago, the
// usual case, or is not over; [holdfast.ErrUnavailable], [tick.ErrWindow], [holdfast.ErrClosed] and [holdfast.ErrInvalid].
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := l.lock(ctx, job)
	if err != nil && ctx.Err() == nil && !errors.Is(err, holdfast.ErrNotAcquired) {
		slog.Error("gocronlock: a tick does not run on this replica", "job", job, "err", err)
	}
	if err != nil {
		return nil, err // not a nil *lock in a gocron.Lock
	}
	return lock, nil
}

func (l *Locker) lock(ctx context.Context, job string) (*lock, error) {
	if job == "" {
		return nil, fmt.Errorf("gocronlock: %w: a job without a name", holdfast.ErrInvalid)
	}
	// The tick is about now, by the clock by which the job was due. Redis' clock would not do: to a replica that is behind by more
	// than gap, a tick that another one has had would look like one of its own.
	_, won, err := l.clock.Claim(ctx, key(job), l.clock.Now(), l.gap, tick.WithMinGap(l.gap))
	if err != nil {
		return nil, fmt.Errorf("gocronlock: job %q: %w", job, err)
	}
	if !won {
		return nil, fmt.Errorf("gocronlock: job %q: another replica has this tick: %w", job, holdfast.ErrNotAcquired)
	}
	held, err := l.clock.Locker.Acquire(ctx, key(job), l.opts...)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: job %q: %w", job, err)
	}
	return &lock{held, job}, nil
}

// lock is a gocron.Lock.
type lock struct {
	held *holdfast.Lock
	job  string
}

// Unlock releases the lock. gocron drops its error, so that Unlock logs a loss, unless a holdfast.LogTrace has.
func (l *lock) Unlock(ctx context.Context) error {
	err := l.held.Release(ctx)
	var core interface{ Logged() bool }
	if errors.Is(err, holdfast.ErrLost) && (!errors.As(err, &core) || !core.Logged()) {
		slog.Error("gocronlock: the lock was lost while its job ran", "job", l.job, "err", err)
	}
	return err
}
