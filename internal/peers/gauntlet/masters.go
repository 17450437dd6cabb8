package main

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

var masters = []scenario{
	{
		name:   "redlock-one-hangs",
		wrong:  "One of five masters hangs, and every lock and unlock waits for it.",
		source: "https://github.com/go-redsync/redsync/pull/133",
		needs:  []feature{majority},
		run:    oneHangs,
	},
	{
		name:   "redlock-not-undone",
		wrong:  "An attempt without a majority leaves its keys on the other masters, and the next one fails as well.",
		source: "https://github.com/leandromoreira/redlock-rb/pull/5",
		needs:  []feature{majority},
		run:    notUndone,
	},
	{
		name:   "redlock-abandoned",
		wrong:  "A majority hangs and the caller gives up; the clean-up uses its context, which has ended, and the keys stay for the lease.",
		source: "https://github.com/googleforgames/open-match/pull/1578",
		needs:  []feature{majority},
		run:    majorityHangs,
	},
	{
		name:   "redlock-restarted",
		wrong:  "A master restarts empty, before anybody who would delay that by hand, and votes at once; a second holder gets a majority beside the first.",
		source: "https://github.com/go-redsync/redsync/issues/186",
		needs:  []feature{majority, belief},
		run:    masterRestarts,
	},
	{
		name:   "redlock-revived",
		wrong:  "A renewal arrives when the lease is over; it takes the lock back for a holder that has lost it, and others are refused for another lease.",
		source: "https://github.com/redisson/redisson/issues/7272",
		needs:  []feature{majority, renewal},
		run:    renewalRevives,
	},
}

func (b *bed) masters(n int) (servers []*servertest.Server, addrs []string) {
	for range n {
		s := b.server()
		servers, addrs = append(servers, s), append(addrs, s.Addr())
	}
	return servers, addrs
}

func oneHangs(b *bed) verdict {
	servers, addrs := b.masters(5)
	l := b.open(settings{addrs: addrs, lease: 30 * time.Second})
	servers[4].Pause()
	b.Cleanup(servers[4].Resume)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	var err error
	took, in := b.within(unheeded, func() {
		var h lock
		if h, err = l.try(ctx, order); err == nil {
			err = h.release(ctx)
		}
	})
	switch {
	case !in:
		return fail("not done after %v", ms(took))
	case err != nil:
		return fail("%v", brief(err))
	}
	return pass("locked and unlocked in %v", ms(took))
}

func notUndone(b *bed) verdict {
	servers, addrs := b.masters(3)
	l := b.open(settings{addrs: addrs, lease: long})
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	for _, s := range servers[:2] {
		if err := b.client(s).Set(ctx, b.key, "another's", time.Minute).Err(); err != nil {
			b.Fatalf("SET: %v", err)
		}
	}
	h, err := l.try(ctx, order)
	if err == nil {
		b.keep(h)
		return fail("it has the lock with one of three")
	}
	if !b.freed(b.client(servers[2])) {
		return fail("%v later its key is on the third master", b.patience)
	}
	return pass("nothing is left on the third master")
}

func majorityHangs(b *bed) verdict {
	servers, addrs := b.masters(3)
	l := b.open(settings{addrs: addrs, lease: long})
	for _, s := range servers[:2] {
		s.Pause()
		b.Cleanup(s.Resume)
	}
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	_, err := l.try(ctx, order)
	for _, s := range servers[:2] {
		s.Resume()
	}
	if err == nil {
		return fail("it has the lock with one of three")
	}
	time.Sleep(impatience) // for the commands to get there
	for i, s := range servers {
		if !b.freed(b.client(s)) {
			return fail("%v later its key is on master %d of 3", b.patience, i+1)
		}
	}
	return pass("nothing is left")
}

// masterRestarts gives two lockers a majority each that has one master in common, which restarts between them.
func masterRestarts(b *bed) verdict {
	const lease = 1500 * time.Millisecond
	const quarantine = 6700 * time.Millisecond // the least that holdfast takes for that lease
	servers, addrs := b.masters(3)
	at := settings{addrs: addrs, lease: lease, quarantine: quarantine}
	first, second := b.open(at), b.open(at) // which takes until the masters vote
	h := b.take(first)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	// The first holder has the majority of masters 1 and 2, as if 3 had been away; then 2 loses its memory.
	servers[1].Kill()
	if err := b.client(servers[2]).Del(ctx, b.key).Err(); err != nil {
		b.Fatalf("DEL: %v", err)
	}
	servers[1].Start()
	for end := time.Now().Add(2 * lease); h.lost() == nil && time.Now().Before(end); {
		other, err := second.try(ctx, order)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		b.keep(other)
		if h.lost() == nil && other.lost() == nil {
			return fail("two hold the lock")
		}
	}
	return pass("nobody else got it while it was held")
}

// renewalRevives cuts a holder off until its lease is over, and lets what it sent meanwhile arrive then.
func renewalRevives(b *bed) verdict {
	const lease = 2 * time.Second
	servers, addrs := b.masters(3)
	var proxies []*servertest.FaultProxy
	var direct []*redis.Client
	var through []string
	for _, s := range servers {
		p := b.proxy(s)
		proxies, direct, through = append(proxies, p), append(direct, b.client(s)), append(through, p.Addr())
	}
	first := b.open(settings{addrs: through, lease: lease})
	second := b.open(settings{addrs: addrs, lease: lease})
	b.take(first)
	for _, p := range proxies {
		p.CutUp()
		b.Cleanup(p.Heal)
	}
	time.Sleep(lease)
	gone := b.until(func() bool {
		return !slices.ContainsFunc(direct, func(rdb *redis.Client) bool { return b.stored(rdb) != "" })
	})
	if !gone {
		return fail("%v later it has the lock", b.patience)
	}
	for _, p := range proxies {
		p.Heal()
	}
	time.Sleep(impatience) // for the commands to get there
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	var err error
	for end := time.Now().Add(lease / 2); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var h lock
		if h, err = second.try(ctx, order); err == nil {
			b.keep(h)
			return pass("another got it")
		}
	}
	return fail("%v later another is refused: %v", lease/2, brief(err))
}
