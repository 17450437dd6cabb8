package cronlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// skewBound is beyond what a clock is off.
const skewBound = time.Second

// early is for how long a tick is not due yet by the clock of Redis, the same for all replicas. It asks until there is an
// answer, or ctx ends.
func (j *job) early(ctx context.Context, tick time.Time) time.Duration {
	if j.g.locker.Client() == nil {
		return 0 // several masters, of which each has its own
	}
	for {
		asked := time.Now().Add(j.ahead)
		now, err := j.redisTime(ctx)
		if err == nil {
			j.skew(now, asked, time.Now().Add(j.ahead))
			return max(tick.Sub(now), 0)
		}
		var refused interface{ RedisError() }
		if errors.As(err, &refused) {
			return 0 // by an ACL, say
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return 0
		}
	}
}

// skew warns, once, where the time of Redis was not between two of this replica.
func (j *job) skew(now, asked, answered time.Time) {
	var ahead time.Duration
	switch {
	case now.Before(asked.Add(-skewBound)):
		ahead = asked.Sub(now)
	case now.After(answered.Add(skewBound)):
		ahead = answered.Sub(now)
	default:
		return
	}
	j.g.skewed.Do(func() {
		slog.Warn("cronlock: the clock of this replica is ahead of that of Redis, by which ticks go", "by", ahead.Round(time.Millisecond), "job", j.name)
	})
}

// redisTime returns when ctx ends, whatever the client's timeouts are.
func (j *job) redisTime(ctx context.Context) (time.Time, error) {
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		now, err := j.g.locker.Client().Time(ctx).Result()
		answers <- answer{now, err}
	}()
	select {
	case a := <-answers:
		return a.now, a.err
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}
