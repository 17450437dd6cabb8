package cronlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// skewBound is how far a clock can be off without a warning.
const skewBound = time.Second

// early returns how long it is until the tick, by the clock of Redis, which is the same for all replicas. It asks until
// Redis answers or ctx ends.
func (j *job) early(ctx context.Context, tick time.Time) time.Duration {
	if j.g.locker.Client() == nil {
		return 0 // several masters, each with its own clock
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
			return 0 // by an ACL, for example
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return 0
		}
	}
}

// skew warns, once, if the time of Redis does not lie between two times of this replica.
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
		slog.Warn("cronlock: the clock of this replica differs from that of Redis, which decides when ticks are due", "by", ahead.Round(time.Millisecond), "job", j.name)
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
