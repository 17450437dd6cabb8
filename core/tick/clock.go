package tick

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// ErrLate: the work would begin too late on this replica.
var ErrLate = errors.New("tick: too late to begin")

const (
	// longestEarly is how far ahead of the clock of Redis Claim grants a tick, unless WithWindow sets another window. A tick
	// that is further ahead is claimed before the wait, which refuses most such ticks at once. Others are claimed after it,
	// so that a replica that dies in the wait does not use them up.
	longestEarly = defaultAhead
	skewBound    = time.Second // how far a clock can be off without a warning
	retryPause   = 200 * time.Millisecond
)

// A Clock claims ticks for a scheduler on many replicas. It is safe for concurrent use.
type Clock struct {
	Locker *holdfast.Locker
	Now    func() time.Time // the clock of this replica; time.Now if nil

	skewed sync.Once
}

// Claim waits until at has come by the clock of Redis, and then claims the tick as func [Claim] does, until the work
// would begin too late: lateness after at by the replica's own clock, not counting the wait. It returns that moment.
//
// A replica that is ahead by more than 10 s claims before it waits, which fails with [ErrWindow] unless [WithWindow]
// allows that. slog warns once about a clock that is off by more than 1 s. With several masters, or if Redis denies
// TIME, Claim does not wait, and the work begins as much too early as the clock is ahead.
func (c *Clock) Claim(ctx context.Context, name string, at time.Time, lateness time.Duration, opts ...Option) (until time.Time, won bool, err error) {
	at = at.Round(0) // the monotonic clock stands still while a machine sleeps
	late := c.now().Sub(at)
	if late >= lateness {
		return until, false, fmt.Errorf("%w: %v late, at most %v allowed", ErrLate, late.Round(time.Millisecond), lateness)
	}
	until = time.Now().Add(lateness - late)
	asking, cancel := context.WithDeadline(ctx, until)
	early := c.early(asking, at)
	cancel()
	until = until.Add(early)
	if early <= longestEarly {
		sleep(ctx, early)
		early = 0
	}
	asking, cancel = context.WithDeadline(ctx, until.Add(-early))
	defer cancel()
	won, err = Claim(asking, c.Locker, name, at, opts...)
	if won {
		sleep(ctx, early)
	}
	return until, won, err
}

func (c *Clock) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

// early returns how long it is until at by the clock of Redis, or 0. It asks until Redis answers or ctx ends.
func (c *Clock) early(ctx context.Context, at time.Time) time.Duration {
	if c.Locker.Client() == nil {
		return 0 // several masters, each with its own clock
	}
	for {
		asked := c.now()
		now, err := c.redisTime(ctx)
		if err == nil {
			c.compare(now, asked, c.now())
			return max(at.Sub(now), 0)
		}
		var refused interface{ RedisError() }
		if errors.As(err, &refused) {
			return 0 // by an ACL, for example
		}
		if sleep(ctx, retryPause); ctx.Err() != nil {
			return 0
		}
	}
}

// compare warns, once, if the time of Redis does not lie between two times of this replica.
func (c *Clock) compare(now, asked, answered time.Time) {
	ahead := answered.Sub(now)
	switch {
	case now.Before(asked.Add(-skewBound)):
		ahead = asked.Sub(now)
	case !now.After(answered.Add(skewBound)):
		return
	}
	c.skewed.Do(func() {
		slog.Warn("tick: the clock of this replica differs from that of Redis, which decides when ticks are due", "by", ahead.Round(time.Millisecond))
	})
}

// redisTime returns when ctx ends, whatever the client's timeouts are.
func (c *Clock) redisTime(ctx context.Context) (time.Time, error) {
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		now, err := c.Locker.Client().Time(ctx).Result()
		answers <- answer{now, err}
	}()
	select {
	case a := <-answers:
		return a.now, a.err
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
