package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// borrowed are the libraries that make the mistake of a scenario themselves, so that nothing has to be made up to fail it.
var borrowed = map[string]library{
	"clock-fast":          semaphores[0],
	"clock-slow":          semaphores[0],
	"limiter-clock":       semaphores[3],
	"permit-wake-up-lost": semaphores[0],
	"place-leaks":         semaphores[1],
	"given-up-inside":     semaphores[3],
	"tenant-starves":      nameless(),
	"charged-for-giving-up": {name: "flawed", key: sameKey, open: func(s settings) (locker, error) {
		return ledger{broken{settings: s, clients: []*redis.Client{redis.NewClient(&redis.Options{Addr: s.addrs[0]})}}}, nil
	}},
	"limit-lowered":   semaphores[0],
	"limit-raised":    semaphores[2],
	"redlock-permits": semaphores[2],
}

func init() {
	controls["clock-fast"] = control{note: "got in beside 2"}
	controls["clock-slow"] = control{note: "one got in beside 2"}
	controls["limiter-clock"] = control{note: "9 hold a lock of 3"}
	controls["permit-wake-up-lost"] = control{note: "it still waits"}
	controls["place-leaks"] = control{note: "is not free"}
	controls["given-up-inside"] = control{note: "got in beside 2"}
	controls["tenant-starves"] = control{note: "was number 7 of 7"}
	controls["charged-for-giving-up"] = control{note: "was number 7 of 7"}
	controls["limit-lowered"] = control{note: "one that named 2 got in"}
	controls["limit-raised"] = control{note: "beside two that named 2"}
	controls["dead-reader-renewed"] = control{reads, "waits for the dead one"}
	controls["redlock-permits"] = control{note: "3 hold a lock of 2"}
}

// controlled is a library that fails the scenario.
func controlled(name string) library {
	if lib, ok := borrowed[name]; ok {
		return lib
	}
	return flawed(controls[name].flaw)
}

func TestTimesOfAClientAreFound(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for arg, found := range map[string]bool{
		strconv.FormatInt(now.Unix(), 10):                              true,
		"5000 " + strconv.FormatInt(now.UnixMilli()-30_000, 10) + " 1": true,
		strconv.FormatInt(now.UnixMicro(), 10):                         true,
		strconv.FormatInt(now.UnixNano(), 10):                          true,
		strconv.FormatInt(now.Add(-off).UnixMilli(), 10):               false,
		strconv.FormatInt(now.UnixMicro()+1, 10):                       false, // the token
		"60000":                                                        false,
		"order":                                                        false,
	} {
		if got := timeIn([]string{"SET", arg}, now, now.UnixMicro()+1) != ""; got != found {
			t.Errorf("a time in %q: got %v, want %v", arg, got, found)
		}
	}
}

// nameless is holdfast without the names of tenants: first come, first served.
func nameless() library {
	l := holdfastLibrary
	l.open = func(s settings) (locker, error) {
		s.tenant = ""
		return openHoldfast(s)
	}
	return l
}

// ledger gives each call a tag when it comes: the next of its tenant's, and not before the latest that was served. A call that
// gives up leaves the line, and the next of its tenant has the tag behind.
type ledger struct{ broken }

type ledgerLock struct {
	brokenLock
	name string
}

var (
	// ledgerJoin has ARGV: the call, and its tenant.
	ledgerJoin = redis.NewScript(`
local tag = math.max(tonumber(redis.call('HGET', KEYS[1] .. ':tags', 'v') or 0), tonumber(redis.call('HGET', KEYS[1] .. ':tags', ARGV[2]) or 0)) + 1
redis.call('HSET', KEYS[1] .. ':tags', ARGV[2], tag)
return redis.call('ZADD', KEYS[1] .. ':line', tag, ARGV[1])`)
	// ledgerEnter has ARGV: the call, and the limit.
	ledgerEnter = redis.NewScript(`
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) or redis.call('ZRANGE', KEYS[1] .. ':line', 0, 0)[1] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1] .. ':tags', 'v', redis.call('ZSCORE', KEYS[1] .. ':line', ARGV[1]))
redis.call('ZREM', KEYS[1] .. ':line', ARGV[1])
return redis.call('SADD', KEYS[1], ARGV[1])`)
)

func (l ledger) try(ctx context.Context, key string) (lock, error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return l.acquire(ctx, key)
}

func (l ledger) acquire(ctx context.Context, key string) (lock, error) {
	rdb, name := l.clients[0], rand.Text()
	if err := ledgerJoin.Run(ctx, rdb, []string{key}, name, l.tenant).Err(); err != nil {
		return nil, err
	}
	for ledgerEnter.Run(ctx, rdb, []string{key}, name, l.limit).Val() != int64(1) {
		if !sleep(ctx, time.Millisecond) {
			rdb.ZRem(context.WithoutCancel(ctx), key+":line", name)
			return nil, errHeld
		}
	}
	return ledgerLock{brokenLock{broken: l.broken, key: key}, name}, nil
}

func (l ledgerLock) release(ctx context.Context) error {
	return l.clients[0].SRem(ctx, l.key, l.name).Err()
}

// waiting is for a scenario not to go on before a call is in line.
func (l ledger) waiting(key string) int {
	return int(l.clients[0].ZCard(context.Background(), key+":line").Val())
}

// shelf keeps readers in a sorted set with their ends, and each of them renews the whole set.
type shelf struct{ broken }

type reader struct {
	brokenLock
	set, name string
}

func (l shelf) try(ctx context.Context, key string) (lock, error) {
	rdb, set := l.clients[0], key+":readers"
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	if err := rdb.ZRemRangeByScore(ctx, set, "-inf", now).Err(); err != nil {
		return nil, err
	}
	if l.limit != readers {
		if rdb.ZCard(ctx, set).Val() > 0 {
			return nil, errHeld
		}
		return l.broken.try(ctx, key)
	}
	renewed, stop := context.WithCancel(context.Background())
	r := reader{brokenLock{broken: l.broken, stop: stop}, set, rand.Text()}
	if err := r.renew(ctx, r.name); err != nil {
		return nil, err
	}
	go func() {
		for sleep(renewed, l.lease/3) {
			_ = r.renew(renewed, rdb.ZRange(renewed, set, 0, -1).Val()...)
		}
	}()
	return r, nil
}

func (l shelf) acquire(ctx context.Context, key string) (lock, error) {
	for {
		h, err := l.try(ctx, key)
		if !errors.Is(err, errHeld) || !sleep(ctx, 5*time.Millisecond) {
			return h, err
		}
	}
}

func (r reader) renew(ctx context.Context, names ...string) error {
	var all []redis.Z
	for _, name := range names {
		all = append(all, redis.Z{Score: float64(time.Now().Add(r.lease).UnixMilli()), Member: name})
	}
	return r.clients[0].ZAdd(ctx, r.set, all...).Err()
}

func (r reader) release(ctx context.Context) error {
	r.stop()
	return r.clients[0].ZRem(ctx, r.set, r.name).Err()
}

// sleep returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
