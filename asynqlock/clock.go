package asynqlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	longestEarly = 10 * time.Second // how early, by the clock of Redis, Claim grants a tick by default
	skewBound    = time.Second      // a clock that differs by more is reported
)

// early returns how long it is until the tick has come by the clock of Redis, which is the same for all replicas, or 0. It
// keeps asking until there is an answer or ctx ends.
func (s *Scheduler) early(ctx context.Context, tick time.Time) time.Duration {
	client := s.locker.Client()
	if client == nil {
		return 0 // several masters, each with a clock of its own
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
			return 0 // by an ACL, for example
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0
		}
	}
}

// compare warns if the time of Redis does not lie between the two times of this replica, give or take skewBound.
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
		slog.Warn("asynqlock: the clock of this replica differs from that of Redis, which decides when ticks are due", "by", ahead.Round(time.Millisecond))
	})
}

// redisTime returns by the time ctx ends, whatever the client's timeouts are.
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
