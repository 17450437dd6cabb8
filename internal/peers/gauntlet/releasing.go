package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

var releasing = []scenario{
	{
		name:   "release-cancelled",
		wrong:  "The request was cancelled, its context with it, and the lock stays for the lease.",
		source: "https://github.com/googleforgames/open-match/issues/1576",
		run:    releaseCancelled,
	},
	{
		name:   "release-of-another's",
		wrong:  "The lease ran out and another holder came; the late release deletes the other's lock, or claims to have worked.",
		source: "https://github.com/lukas-krecan/ShedLock/pull/2584",
		run:    releaseOfAnothers,
	},
	{
		name:   "release-reply-lost",
		wrong:  "The connection breaks after the server freed the lock; the release is sent again and reports that the lock had been lost.",
		source: "https://github.com/redis/go-redis/issues/2985",
		needs:  []feature{reports},
		run:    releaseReplyLost,
	},
	{
		name:   "renewed-after-release",
		wrong:  "The renewal outlives the release, or comes after it, and the key comes back.",
		source: "https://github.com/redisson/redisson/issues/7272",
		needs:  []feature{renewal},
		run:    renewedAfterRelease,
	},
	{
		name:   "goroutines-left",
		wrong:  "Goroutines are left behind by locks that were released and lockers that were closed.",
		source: "https://github.com/redis/rueidis/pull/301",
		run:    goroutinesLeft,
	},
}

func releaseCancelled(b *bed) verdict {
	s := b.server()
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	h := b.take(l)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := h.release(ctx)
	if !b.freed(b.client(s)) {
		if err == nil {
			return fail("no error, and %v later the key is still there", b.patience)
		}
		return fail("%v, and %v later the key is still there", brief(err), b.patience)
	}
	return pass("the key is gone")
}

func releaseOfAnothers(b *bed) verdict {
	s := b.server()
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	h := b.take(l)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	// What the end of the lease does, at a moment that the scenario knows.
	if err := rdb.Set(ctx, b.key, "somebody else's", time.Minute).Err(); err != nil {
		b.Fatalf("SET: %v", err)
	}
	_, silent := b.lib.lacks[reports]
	told := silent && b.until(func() bool { return h.lost() != nil })
	err := h.release(ctx)
	if b.stored(rdb) != "somebody else's" {
		return fail("the other's key is gone")
	}
	if !told && err == nil {
		return fail("the release reports no loss")
	}
	if silent {
		return pass("the other's key is there, and the context of the lock had ended")
	}
	return pass("the other's key is there: %v", brief(err))
}

func releaseReplyLost(b *bed) verdict {
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	h := b.take(l)
	judged := b.once(p, servertest.LoseReplyAndClose)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	err := h.release(ctx)
	switch {
	case !judged():
		b.Fatalf("no command named the key")
	case errors.Is(err, errNotHeld):
		return fail("%v, though it had been held until then", brief(err))
	case !b.freed(b.client(s)):
		return fail("the key is still there: %v", err)
	case err != nil:
		return pass("it cannot tell: %v", brief(err))
	}
	return pass("released")
}

// renewedAfterRelease releases when renewals are due.
func renewedAfterRelease(b *bed) verdict {
	const lease, tries = 1500 * time.Millisecond, 4
	s := b.server()
	p := b.proxy(s)
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: lease})
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	for i := range tries {
		var h lock
		if !b.until(func() bool {
			var err error
			h, err = l.try(ctx, order)
			return err == nil
		}) {
			return fail("the lock cannot be had after its release")
		}
		// From before a third of the lease, the usual time of a renewal, to after it.
		time.Sleep(lease/3 + time.Duration(i-tries/2)*2*time.Millisecond)
		if err := h.release(ctx); err != nil && !errors.Is(err, errNotHeld) {
			b.Fatalf("release: %v", err)
		}
		if !b.freed(rdb) {
			return fail("the key is there after the release")
		}
	}
	p.ResetCommands()
	time.Sleep(2 * lease)
	if b.stored(rdb) != "" {
		return fail("the key came back")
	}
	if n := lockCommands(p); n > 0 {
		return fail("%d commands in two leases without a lock", n)
	}
	return pass("nothing is sent any more")
}

// lockCommands is what has been sent for locks: pings keep connections alive.
func lockCommands(p *servertest.FaultProxy) int64 {
	n := p.Commands()
	return n.Total() - n["ping"]
}

func goroutinesLeft(b *bed) verdict {
	s := b.server()
	count, counted := census()
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	const locks = 20
	var failure error
	count(func() {
		l, err := b.lib.open(settings{addrs: []string{s.Addr()}, lease: long})
		if err != nil {
			failure = err
			return
		}
		defer l.close()
		for range locks {
			h, err := l.acquire(ctx, order)
			if err == nil {
				short, stop := context.WithTimeout(ctx, 5*time.Millisecond)
				if second, err := l.acquire(short, order); err == nil {
					failure = errors.Join(errors.New("a second holder"), second.release(ctx))
				}
				stop()
				err = h.release(ctx)
			}
			if err != nil {
				failure = err
				return
			}
		}
	})
	if failure != nil {
		b.Fatalf("%v", failure)
	}
	if !b.until(func() bool { return counted() == 0 }) {
		return fail("%d after %d locks", counted(), locks)
	}
	return pass("none")
}
