package history

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Plain is the simplest lock on one Redis that keeps the models: SET NX PX, a lease that counts from before it was
// sent, a release that compares, tokens from a counter in Redis, a mark that a script raises. It renews nothing. What it
// cannot do is in its flaws, by the names under which a worker finds it.
const Plain = "plain"

// flaws break it in one point each.
type flaws struct {
	blind   bool // a release deletes whatever is there
	reply   bool // the lease counts from the reply
	local   bool // each process counts its tokens
	getSet  bool // a claim looks first and raises the mark then
	shallow bool // the first release of several by one owner frees the lock
	surplus bool // one more than the limit is let in
	selfish bool // a call looks at its own limit alone, and not at the least of those inside
	clock   bool // tokens are the time of Redis
	brief   bool // a mark is forgotten after 300 ms, and no tick is too old
	named   bool // several keys are taken in the order in which they are named
	greedy  bool // of several keys those behind the one that is waited for are kept
	revives bool // each that enters lengthens the leases of all inside
	hasty   bool // a leader whose context ends is replaced while its function runs
	stays   bool // a leader whose lease is over goes on
}

var plain = map[string]flaws{
	Plain:              {},
	"blind release":    {blind: true},
	"lease from reply": {reply: true},
	"local tokens":     {local: true},
	"GET then SET":     {getSet: true},
	"shallow release":  {shallow: true},
	"one too many":     {surplus: true},
	"own limit":        {selfish: true},
	"revived":          {revives: true},
	"clock tokens":     {clock: true},
	"brief marks":      {brief: true},
	"keys as named":    {named: true},
	"keeps above":      {greedy: true},
	"hasty leader":     {hasty: true},
	"leads on":         {stays: true},
}

var (
	plainTake = redis.NewScript(`
local had = redis.call('GET', KEYS[1])
if had and had ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if had then
  redis.call('INCR', KEYS[1] .. ':depth')
else
  redis.call('SET', KEYS[1] .. ':depth', 1)
  redis.call('INCR', KEYS[1] .. ':token')
end
if ARGV[3] == '1' then
  local time = redis.call('TIME')
  if not had then redis.call('SET', KEYS[1] .. ':token', string.format('%.0f', time[1] * 1000000 + time[2])) end
end
return tonumber(redis.call('GET', KEYS[1] .. ':token'))`)
	plainRelease = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[1] .. ':token') ~= ARGV[2] then return 0 end
if redis.call('DECR', KEYS[1] .. ':depth') <= 0 or ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
return 1`)
	plainEnter = redis.NewScript(`
local time = redis.call('TIME')
local now, limit = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local all, inside, least = redis.call('HGETALL', KEYS[1]), 0, limit
for i = 1, #all, 2 do
  local ends, its = string.match(all[i + 1], '^(%d+) (%d+)$')
  if tonumber(ends) > now or ARGV[6] == '1' then
    inside = inside + 1
    if ARGV[5] == '0' then least = math.min(least, its) end
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
if inside + 1 > least + ARGV[4] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. limit)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('INCR', KEYS[1] .. ':token')`)
	plainLeave = redis.NewScript(`
local time = redis.call('TIME')
local ends = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^%d+')
redis.call('HDEL', KEYS[1], ARGV[1])
return ends and tonumber(ends) > time[1] * 1000 + math.floor(time[2] / 1000) and 1 or 0`)
	plainClaim = redis.NewScript(`
local mark = tonumber(redis.call('GET', KEYS[1]) or 0)
if mark > 0 and tonumber(ARGV[1]) < mark + math.max(tonumber(ARGV[2]), 1) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] == '1' then redis.call('PEXPIRE', KEYS[1], 300) end
return 1`)
)

type plainLocks struct {
	flaws
	rdb    *redis.Client
	ttl    time.Duration
	tokens atomic.Int64
}

func newPlain(o Orders, f flaws) *plainLocks {
	return &plainLocks{flaws: f, rdb: newClient(o.Nodes[0], -1), ttl: o.TTL} // a command that is sent twice is not safe
}

func (l *plainLocks) acquire(ctx context.Context, key string, waits bool, how manner) (handle, error) {
	owner := how.id
	if how.within != nil {
		owner = how.within.handle.(*plainLock).owner
	}
	if owner == "" {
		owner = rand.Text()
	}
	for {
		sent := time.Now()
		var token int64
		var err error
		if how.limit > 0 {
			token, err = plainEnter.Run(ctx, l.rdb, []string{key}, owner, how.limit, l.ttl.Milliseconds(), digit(l.surplus), digit(l.selfish), digit(l.revives)).Int64()
		} else {
			token, err = plainTake.Run(ctx, l.rdb, []string{key}, owner, l.ttl.Milliseconds(), digit(l.clock)).Int64()
		}
		switch {
		case err != nil:
			return nil, err
		case token == 0 && !waits:
			return nil, holdfast.ErrNotAcquired
		case token == 0:
			select {
			case <-time.After(3 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("%w, %w", holdfast.ErrNotAcquired, ctx.Err())
			}
		}
		if l.reply {
			sent = time.Now()
		}
		tenure := token
		if l.local {
			token = l.tokens.Add(1)
		}
		return &plainLock{plainLocks: l, key: key, owner: owner, limited: how.limit > 0, tenure: tenure, token: token, until: sent.Add(l.ttl * 9 / 10)}, nil
	}
}

func (l *plainLocks) several(ctx context.Context, keys []string, fn func([]handle)) (err error) {
	order := slices.Clone(keys)
	if !l.named {
		slices.Sort(order)
	}
	held := map[string]handle{}
	defer func() {
		for _, h := range held {
			if e := h.Release(context.WithoutCancel(ctx)); err == nil {
				err = e
			}
		}
	}()
	take := func(key string, waits bool) error {
		h, err := l.acquire(ctx, key, waits, manner{})
		if err == nil {
			held[key] = h
		}
		return err
	}
	for len(held) < len(keys) {
		refused := ""
		for _, key := range order {
			if held[key] != nil || refused != "" && !l.greedy {
				continue
			}
			err := take(key, false)
			if errors.Is(err, holdfast.ErrNotAcquired) && refused == "" {
				refused = key
			} else if err != nil && !errors.Is(err, holdfast.ErrNotAcquired) {
				return err
			}
		}
		if refused != "" {
			if err := take(refused, true); err != nil {
				return err
			}
		}
	}
	var all []handle
	for _, key := range keys {
		all = append(all, held[key])
	}
	fn(all)
	return nil
}

func (l *plainLocks) lead(ctx context.Context, key string, fn func(handle)) error {
	for {
		got, err := l.acquire(ctx, key, true, manner{})
		if err != nil {
			return err
		}
		lock, stop := got.(*plainLock), func() bool { return true }
		release := func() error { return lock.Release(context.WithoutCancel(ctx)) }
		if l.hasty {
			stop = context.AfterFunc(ctx, func() { _ = release() })
		}
		if l.stays {
			fn(leadsOn{lock})
		} else {
			fn(lock)
		}
		if stop() {
			err = release()
		}
		if !errors.Is(err, holdfast.ErrLost) || ctx.Err() != nil {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

// leadsOn counts until its function has returned.
type leadsOn struct{ *plainLock }

func (leadsOn) Err() error { return nil }

func (l *plainLocks) claim(ctx context.Context, name string, tick time.Time, gap time.Duration) (bool, error) {
	at, step := tick.UnixMicro(), max(gap.Microseconds(), 1)
	if !l.getSet {
		n, err := plainClaim.Run(ctx, l.rdb, []string{name}, at, step, digit(l.brief)).Int64()
		return n == 1, err
	}
	mark, err := l.rdb.Get(ctx, name).Int64()
	if err != nil && err != redis.Nil {
		return false, err
	}
	if mark > 0 && at < mark+step {
		return false, nil
	}
	return true, l.rdb.Set(ctx, name, at, 0).Err()
}

func (l *plainLocks) close() error { return l.rdb.Close() }

type plainLock struct {
	*plainLocks
	key, owner    string
	limited       bool
	tenure, token int64
	until         time.Time
}

func (lk *plainLock) Token() int64                                   { return lk.token }
func (lk *plainLock) Deadline() time.Time                            { return lk.until }
func (lk *plainLock) Context(parent context.Context) context.Context { return parent }

func (lk *plainLock) Err() error {
	if time.Now().Before(lk.until) {
		return nil
	}
	return holdfast.ErrLost
}

func (lk *plainLock) Release(ctx context.Context) error {
	if lk.blind {
		return lk.rdb.Del(ctx, lk.key).Err()
	}
	script, args := plainRelease, []any{lk.owner, lk.tenure, digit(lk.shallow)}
	if lk.limited {
		script = plainLeave
	}
	n, err := script.Run(ctx, lk.rdb, []string{lk.key}, args...).Int64()
	if err == nil && n == 0 {
		err = holdfast.ErrLost
	}
	return err
}

func digit(flaw bool) int {
	if flaw {
		return 1
	}
	return 0
}
