package asynqlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	longestEarly = 10 * time.Second // how far ahead of Redis' clock Claim grants a tick, unless WithClaim says otherwise
	skewBound    = time.Second      // beyond it a clock is off
)

// early is for how long a tick is not due yet by the clock of Redis, the same for all replicas; or 0. It asks until there is
// an answer, or ctx ends.
func (s *Scheduler) early(ctx context.Context, tick time.Time) time.Duration {
	client := s.locker.Client()
	if client == nil {
		return 0 // several masters, of which each has its own
	}
	for {
		asked := time.Now().Add(s.ahead)
		now, err := redisTime(ctx, client)
		if err == nil {
			s.compare(now, asked, time.Now().Add(s.ahead))
			return max(0, tick.Sub(now))
		}
		var refused redis.Error
		if errors.As(err, &refused) {
			return 0 // by an ACL, say
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0
		}
	}
}

// compare warns where the time of Redis was not between two of this replica.
func (s *Scheduler) compare(now, asked, answered time.Time) {
	var ahead time.Duration
	switch {
	case now.Before(asked.Add(-skewBound)):
		ahead = asked.Sub(now)
	case now.After(answered.Add(skewBound)):
		ahead = answered.Sub(now)
	default:
		return
	}
	s.skewed.Do(func() {
		slog.Warn("asynqlock: the clock of this replica is ahead of that of Redis, by which ticks go", "by", ahead.Round(time.Millisecond))
	})
}

// redisTime returns when ctx ends, whatever the client's timeouts are.
func redisTime(ctx context.Context, client redis.UniversalClient) (time.Time, error) {
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		now, err := client.Time(ctx).Result()
		answers <- answer{now, err}
	}()
	select {
	case a := <-answers:
		return a.now, a.err
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}
