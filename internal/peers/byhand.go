package peers

import (
	"context"
	"time"
)

// ByHand is the limiter that services write themselves, such as https://github.com/Tencent/WeKnora/pull/1986: on one Redis a sorted
// set of the holders by the clocks of the clients, like that of redis-semaphore. A caller that finds no place looks again every 200 ms
// by default. No limiter is to cost a call, so what cannot be known is allowed: where the context ends, or Redis does not answer,
// the call goes on without a place.
var ByHand = &Library{Name: "sorted set by hand", open: func(s Settings) (Locker, error) {
	if s.Pause == nil {
		s.Pause = func(int) time.Duration { return 200 * time.Millisecond }
	}
	l, err := RedisSemaphore.open(s)
	if err != nil {
		return nil, err
	}
	return byHand{l.(redisSemaphore)}, nil
}}

type byHand struct{ redisSemaphore }

func (s byHand) Acquire(ctx context.Context, key string) (Lock, error) {
	l, err := s.redisSemaphore.Acquire(ctx, key)
	if err != nil {
		return placeless{}, nil
	}
	return l, nil
}

// placeless has nothing to give back.
type placeless struct{ redisSemaphoreLock }

func (placeless) Release(context.Context) error { return nil }
