package peers

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// RedissonPermits is the algorithm of Redisson's RPermitExpirableSemaphore, written here over go-redis for one permit a
	// call: a counter of the free places, and a sorted set of the permits with their ends, all by the clocks of the clients.
	// An acquire takes out permits that have ended by its clock, and takes a place if one is free. A release gives the place
	// back and publishes how many are free. A waiter subscribes, looks, and looks again when a message comes or the first
	// permit ends.
	RedissonPermits = &Library{Name: "Redisson's permits", open: func(s Settings) (Locker, error) {
		return newRedisson(s, permits{}), nil
	}}
	// RedissonSemaphore is the algorithm of Redisson's RSemaphore, written here in the same way: the counter alone.
	RedissonSemaphore = &Library{Name: "Redisson's RSemaphore", open: func(s Settings) (Locker, error) {
		return newRedisson(s, counted{}), nil
	}}
)

// redisson is what both have in common: how many places there are is in Redis, and waiters of a client share a subscription.
type redisson struct {
	overGoRedis
	Settings
	places
	sized sync.Map // the keys whose number of places this client has set
	ears  ears
}

// places are the commands of one of them.
type places interface {
	// take fails with ErrHeld, and then tells when the first permit ends, in ms, or 0.
	take(ctx context.Context, r *redisson, key, id string) (ends int64, err error)
	free(ctx context.Context, r *redisson, key, id string) error
}

func newRedisson(s Settings, p places) *redisson {
	if s.Clock == nil {
		s.Clock = time.Now
	}
	rdb := s.Clients[0]
	return &redisson{overGoRedis: overGoRedis{s.Clients}, Settings: s, places: p, ears: ears{rdb: rdb, latches: map[string]*latch{}}}
}

// The names of Redisson's keys and channel.
func timeouts(key string) string  { return "{" + key + "}:timeout" }
func scChannel(key string) string { return "redisson_sc:{" + key + "}" }

// setPermits is trySetPermits, which programs call when they start: the first one decides.
var setPermits = redis.NewScript(`
if redis.call('GET', KEYS[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('PUBLISH', KEYS[2], ARGV[1])
return 1`)

func (r *redisson) Try(ctx context.Context, key string) (Lock, error) {
	l, _, err := r.try(ctx, key)
	return l, err
}

func (r *redisson) try(ctx context.Context, key string) (Lock, int64, error) {
	if _, ok := r.sized.Load(key); !ok {
		if err := setPermits.Run(ctx, r.clients[0], []string{key, scChannel(key)}, r.Limit).Err(); err != nil {
			return nil, 0, err
		}
		r.sized.Store(key, true)
	}
	id := RandomValue()
	ends, err := r.take(ctx, r, key, id)
	l, err := found(&redissonPermit{r, key, id}, err)
	return l, ends, err
}

func (r *redisson) Acquire(ctx context.Context, key string) (Lock, error) {
	l, _, err := r.try(ctx, key)
	if !errors.Is(err, ErrHeld) {
		return l, err
	}
	e, err := r.ears.join(ctx, scChannel(key))
	if err != nil {
		return nil, err
	}
	defer r.ears.leave(e)
	for {
		l, ends, err := r.try(ctx, key)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		var over <-chan time.Time // never, where no permit has an end
		if ends != 0 {
			over = time.After(time.Duration(ends-r.Clock().UnixMilli()) * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ErrHeld, ctx.Err())
		case <-e.looks:
		case <-over:
		}
	}
}

func (r *redisson) Close() { r.ears.close() }

type redissonPermit struct {
	*redisson
	key, id string
}

func (p *redissonPermit) Release(ctx context.Context) error {
	return p.free(ctx, p.redisson, p.key, p.id)
}

// Extend is left out: nobody here holds a permit for longer than a lease.
func (p *redissonPermit) Extend(context.Context, time.Duration) error { return errors.ErrUnsupported }

func (p *redissonPermit) Lost() error { return nil }

type permits struct{}

var (
	// takePermit has ARGV: the end of the permit and the time, both by the client's clock, and the permit.
	takePermit = redis.NewScript(`
local over = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[2], 'LIMIT', 0, 1)
if #over > 0 then
  redis.call('ZREM', KEYS[2], unpack(over))
  local free = redis.call('INCRBY', KEYS[1], #over)
  if free > 0 then redis.call('PUBLISH', KEYS[3], free) end
end
local free = redis.call('GET', KEYS[1])
if free and tonumber(free) >= 1 then
  redis.call('DECRBY', KEYS[1], 1)
  redis.call('ZADD', KEYS[2], ARGV[1], ARGV[3])
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl > 0 then redis.call('PEXPIRE', KEYS[2], ttl) end
  return 'OK'
end
return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or '0'`)
	// freePermit has ARGV: the permit, and the time by the client's clock.
	freePermit = redis.NewScript(`
local ends = redis.call('ZSCORE', KEYS[2], ARGV[1])
if redis.call('ZREM', KEYS[2], ARGV[1]) ~= 1 then return 0 end
redis.call('PUBLISH', KEYS[3], redis.call('INCRBY', KEYS[1], 1))
return tonumber(ends) > tonumber(ARGV[2]) and 1 or 0`)
)

func permitKeys(key string) []string { return []string{key, timeouts(key), scChannel(key)} }

func (permits) take(ctx context.Context, r *redisson, key, id string) (int64, error) {
	now := r.Clock()
	said, err := takePermit.Run(ctx, r.clients[0], permitKeys(key), now.Add(r.Lease).UnixMilli(), now.UnixMilli(), id).Text()
	if err != nil || said == "OK" {
		return 0, err
	}
	ends, err := strconv.ParseInt(said, 10, 64)
	return ends, errors.Join(ErrHeld, err)
}

func (permits) free(ctx context.Context, r *redisson, key, id string) error {
	return did(freePermit.Run(ctx, r.clients[0], permitKeys(key), id, r.Clock().UnixMilli()).Int())
}

type counted struct{}

var (
	takeCount = redis.NewScript(`
local free = redis.call('GET', KEYS[1])
if not free or tonumber(free) < 1 then return 0 end
redis.call('DECRBY', KEYS[1], 1)
return 1`)
	freeCount = redis.NewScript(`redis.call('PUBLISH', KEYS[2], redis.call('INCRBY', KEYS[1], 1))`)
)

func (counted) take(ctx context.Context, r *redisson, key, _ string) (int64, error) {
	n, err := takeCount.Run(ctx, r.clients[0], []string{key}).Int()
	if err == nil && n == 0 {
		err = ErrHeld
	}
	return 0, err
}

func (counted) free(ctx context.Context, r *redisson, key, _ string) error {
	_, err := freeCount.Run(ctx, r.clients[0], []string{key, scChannel(key)}).Result()
	if errors.Is(err, redis.Nil) { // the script returns nothing
		return nil
	}
	return err
}

// ears are the subscriptions of one client, on a connection of their own.
type ears struct {
	rdb     *redis.Client
	mu      sync.Mutex // guards all below
	pubsub  *redis.PubSub
	latches map[string]*latch   // by channel
	asked   map[string][]*latch // whose subscription the server has not confirmed, in order
	hearing sync.WaitGroup
}

// latch is where the waiters of a client for one key wait. They share the subscription; the last one to leave ends it.
type latch struct {
	channel   string
	waiting   int
	confirmed chan struct{}
	looks     chan struct{} // one for each waiter that is to look again
}

// join waits until the server has confirmed the subscription.
func (e *ears) join(ctx context.Context, channel string) (*latch, error) {
	l, err := e.add(ctx, channel)
	if err == nil {
		select {
		case <-l.confirmed:
			return l, nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	e.leave(l)
	return nil, err
}

func (e *ears) add(ctx context.Context, channel string) (*latch, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.latches[channel]
	if l != nil {
		l.waiting++
		return l, nil
	}
	l = &latch{channel, 1, make(chan struct{}), make(chan struct{}, 4096)}
	e.latches[channel] = l
	if e.pubsub == nil {
		e.pubsub, e.asked = e.rdb.Subscribe(context.WithoutCancel(ctx)), map[string][]*latch{}
		news := e.pubsub.ChannelWithSubscriptions()
		e.hearing.Go(func() {
			for said := range news {
				e.hear(said)
			}
		})
	}
	e.asked[channel] = append(e.asked[channel], l)
	return l, e.pubsub.Subscribe(ctx, channel)
}

func (e *ears) leave(l *latch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		delete(e.latches, l.channel)
		_ = e.pubsub.Unsubscribe(context.Background(), l.channel) // a message more does no harm
	}
}

func (e *ears) hear(said any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch said := said.(type) {
	case *redis.Subscription:
		if waits := e.asked[said.Channel]; said.Kind == "subscribe" && len(waits) > 0 {
			close(waits[0].confirmed)
			e.asked[said.Channel] = waits[1:]
		}
	case *redis.Message:
		l, free := e.latches[said.Channel], 0
		if l == nil {
			return
		}
		free, _ = strconv.Atoi(said.Payload) // a number, by its scripts
		for range min(free, l.waiting) {
			select {
			case l.looks <- struct{}{}:
			default: // more looks than waiters are due
			}
		}
	}
}

func (e *ears) close() {
	e.mu.Lock()
	pubsub := e.pubsub
	e.mu.Unlock()
	if pubsub != nil {
		_ = pubsub.Close()
		e.hearing.Wait()
	}
}
