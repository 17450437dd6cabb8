package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

var several = []scenario{
	{
		name:     "clock-fast",
		wrong:    "Permits end by the clocks of the clients: one whose clock is fast takes the places of others whose leases run.",
		source:   "https://redis.io/ebook/part-2-core-concepts/chapter-6-application-components-in-redis/6-3-counting-semaphores/6-3-2-fair-semaphores",
		together: true,
		run:      clockFast,
	},
	{
		name:     "clock-slow",
		wrong:    "Permits end by the clocks of the clients: the place of one whose clock is slow is taken at once, while its lease runs.",
		source:   "https://redis.io/ebook/part-2-core-concepts/chapter-6-application-components-in-redis/6-3-counting-semaphores/6-3-2-fair-semaphores",
		together: true,
		run:      clockSlow,
	},
	{
		name:     "limiter-clock",
		wrong:    "A limiter counts by the clocks of its processes, and two of those are a minute off: each process fills it anew.",
		source:   "https://github.com/dv/redis-semaphore/issues/13",
		together: true,
		run:      limiterClock,
	},
	{
		name:     "permit-wake-up-lost",
		wrong:    "A waiter misses the message of a release, and waits on beside a free place.",
		source:   "https://github.com/redisson/redisson/issues/5762",
		together: true,
		run:      func(b *bed) verdict { return wakeUpLost(b, 2) },
	},
	{
		name:     "place-leaks",
		wrong:    "Holders die, and their places are never free again.",
		source:   "https://github.com/redisson/redisson/issues/2045",
		together: true,
		run:      placeLeaks,
	},
	{
		name:     "given-up-inside",
		wrong:    "A call gives up while it waits for a place, and goes on as if it had one: more are inside than may be.",
		source:   "https://github.com/Tencent/WeKnora/pull/1986",
		together: true,
		run:      givenUpInside,
	},
	{
		name:     "tenant-starves",
		wrong:    "A tenant has many calls in line, and the one call of another waits behind all of them.",
		source:   "https://github.com/que-rb/que/issues/353",
		needs:    []feature{tenants},
		together: true,
		run:      func(b *bed) verdict { return b.besideCrowd(0) },
	},
	{
		name:     "charged-for-giving-up",
		wrong:    "Calls that have given up go on to count for their tenant: those that come after them wait as if they had been served.",
		source:   "https://github.com/kubernetes/kubernetes/pull/100634",
		needs:    []feature{tenants},
		together: true,
		run:      func(b *bed) verdict { return b.besideCrowd(2 * crowd) },
	},
	{
		name:     "limit-lowered",
		wrong:    "A deployment lowers the limit while holders are inside, and one that names the lower limit gets in beside more of them.",
		source:   "https://github.com/madelson/DistributedLock/issues/78",
		together: true,
		run:      limitLowered,
	},
	{
		name:     "limit-raised",
		wrong:    "A deployment raises the limit while the lock is full: one gets in beside holders that were promised less, or the new limit never counts.",
		source:   "https://github.com/madelson/DistributedLock/issues/78",
		together: true,
		run:      limitRaised,
	},
	{
		name:     "dead-reader-renewed",
		wrong:    "A reader dies, and another reader's renewal prolongs its lease too: the writer waits for a lease after the last live reader has left.",
		source:   "https://github.com/redisson/redisson/pull/7098",
		needs:    []feature{reading},
		together: true,
		run:      deadReaderRenewed,
	},
	{
		name:     "redlock-permits",
		wrong:    "Each of three masters counts to two by itself, and three holders have a majority.",
		source:   "https://github.com/swarthy/redis-semaphore#redlocksemaphore",
		needs:    []feature{majority},
		together: true,
		run:      redlockPermits,
	},
}

// off is how wrong a clock is.
const off = time.Hour

func clockFast(b *bed) verdict {
	const limit = 2
	s := b.server()
	p := b.proxy(s)
	right := b.open(settings{addrs: []string{s.Addr()}, lease: long, limit: limit})
	fast := b.open(settings{addrs: []string{p.Addr()}, lease: long, limit: limit, ahead: off})
	b.take(right)
	h := b.take(right)
	sent := b.sent(p)
	if b.tryOnce(fast) != nil {
		return fail("one whose clock is fast by %v got in beside %d", off, limit)
	}
	return b.timeless(sent(), h, "it was refused")
}

func clockSlow(b *bed) verdict {
	const limit = 2
	s := b.server()
	p := b.proxy(s)
	right := b.open(settings{addrs: []string{s.Addr()}, lease: long, limit: limit})
	slow := b.open(settings{addrs: []string{p.Addr()}, lease: long, limit: limit, ahead: -off})
	sent := b.sent(p)
	b.take(right)
	h := b.take(slow)
	if b.tryOnce(right) != nil {
		return fail("one got in beside %d, of whom one has a clock that is slow by %v", limit, off)
	}
	ctx, cancel := b.background()
	defer cancel()
	if err := h.release(ctx); err != nil {
		return fail("the release of the one whose clock is slow: %v", brief(err))
	}
	return b.timeless(sent(), h, "it kept its place")
}

// limiterClock has three processes fill a lock, the one with the slowest clock first. Nobody leaves.
func limiterClock(b *bed) verdict {
	const limit, lease = 3, 10 * time.Second
	s := b.server()
	p := b.proxy(s)
	slow := b.open(settings{addrs: []string{p.Addr()}, lease: lease, limit: limit, ahead: -time.Minute})
	right := b.open(settings{addrs: []string{s.Addr()}, lease: lease, limit: limit})
	fast := b.open(settings{addrs: []string{p.Addr()}, lease: lease, limit: limit, ahead: time.Minute})
	sent := b.sent(p)
	h := b.take(slow)
	inside := 1
	for _, l := range []locker{slow, right, fast} {
		for range limit {
			if b.tryOnce(l) != nil {
				inside++
			}
		}
	}
	if inside != limit {
		return fail("%d hold a lock of %d", inside, limit)
	}
	return b.timeless(sent(), h, fmt.Sprintf("%d hold a lock of %d", inside, limit))
}

// timeless passes what the process of a wrong clock sent, where that has no time. Not every library can be given another clock, but
// one that sends no time cannot be misled by any.
func (b *bed) timeless(sent []string, h lock, note string) verdict {
	if clock := timeIn(sent, time.Now(), h.token()); clock != "" {
		b.Fatalf("it sends %q, a time of a clock that this scenario did not set", clock)
	}
	return pass("%s, and sends no time", note)
}

// sent collects the arguments of all commands from now on.
func (b *bed) sent(p *servertest.FaultProxy) func() []string {
	var mu sync.Mutex // guards all
	var all []string
	p.OnCommand(func(args []string) servertest.Verdict {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, args[1:]...)
		return servertest.Pass
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

var longNumber = regexp.MustCompile(`[0-9]{10,}`)

// timeIn finds a time in s, ms, µs or ns that is about now, if there is one that is not a token: tokens are times of the server.
func timeIn(args []string, now time.Time, token int64) string {
	const about = 40 * time.Second // limiterClock sets clocks that are further off
	for _, arg := range args {
		for _, digits := range longNumber.FindAllString(arg, -1) {
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n == token {
				continue
			}
			for _, t := range []time.Time{time.Unix(n, 0), time.UnixMilli(n), time.UnixMicro(n), time.Unix(0, n)} {
				if t.Sub(now).Abs() < about {
					return arg
				}
			}
		}
	}
	return ""
}

// tryOnce returns nil where others hold the lock.
func (b *bed) tryOnce(l locker) lock {
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h, err := l.try(ctx, order)
	if err == nil {
		b.keep(h)
		return h
	}
	if !errors.Is(err, errHeld) {
		b.Fatalf("try: %v", err)
	}
	return nil
}

func placeLeaks(b *bed) verdict {
	const limit, lease = 2, time.Second
	s := b.server()
	p := b.proxy(s)
	dying := b.open(settings{addrs: []string{p.Addr()}, lease: lease, limit: limit})
	l := b.open(settings{addrs: []string{s.Addr()}, lease: lease, limit: limit})
	for range limit {
		b.take(dying)
	}
	p.CutUp()
	p.CutDown()
	b.Cleanup(p.Heal)
	ctx, cancel := b.background()
	var waiters []*waiter
	for range limit {
		waiters = append(waiters, b.wait(ctx, l))
	}
	b.Cleanup(cancel)
	time.Sleep(lease)
	since := time.Now()
	for i, w := range waiters {
		h, in := b.result(w)
		switch {
		case !in:
			return fail("%v after the leases of the dead holders the place of number %d is not free", b.patience, i+1)
		case h == nil:
			return fail("a waiter gave up: %v", brief(w.err))
		}
	}
	return pass("all places were taken again %v after the leases of the dead holders", ms(time.Since(since)))
}

func givenUpInside(b *bed) verdict {
	const limit = 2
	at := settings{addrs: []string{b.server().Addr()}, lease: long, limit: limit}
	l := b.open(at)
	for range limit {
		b.take(l)
	}
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	switch h, in := b.result(b.wait(ctx, b.open(at))); {
	case !in:
		return fail("%v after its context ended it still waits", b.patience)
	case h != nil:
		return fail("one whose context ended got in beside %d", limit)
	}
	return pass("it was refused")
}

// besideCrowd has a tenant call whose calls have given up so often, beside a crowd of another's that came before.
func (b *bed) besideCrowd(givenUp int) verdict {
	const limit = 2
	at := settings{addrs: []string{b.server().Addr()}, lease: long, limit: limit, tenant: "many"}
	holder := b.open(at)
	h := b.take(holder)
	b.take(holder)
	all, cancel := b.background()
	var calls sync.WaitGroup
	served := make(chan bool, crowd+1) // whether it is the other's
	call := func(l locker, other bool) {
		calls.Go(func() {
			mine, err := l.acquire(all, order)
			if err != nil {
				return
			}
			served <- other
			_ = mine.release(all)
		})
	}
	b.Cleanup(calls.Wait)
	b.Cleanup(cancel)
	for i := range crowd {
		call(b.open(at), false)
		b.settled(holder, i+1)
	}
	at.tenant = "other"
	other := b.open(at)
	for range givenUp {
		ctx, giveUp := context.WithCancel(all)
		w := b.wait(ctx, other)
		b.settled(holder, crowd+1)
		giveUp()
		if got, in := b.result(w); !in || got != nil {
			return fail("its context ended, and it got in or waits on")
		}
		if q, ok := holder.(queued); ok && !b.until(func() bool { return q.waiting(order) <= crowd }) {
			return fail("it has given up, and is in line")
		}
	}
	call(other, true)
	b.settled(holder, crowd+1)
	b.leave(h)
	for i := range crowd + 1 {
		select {
		case others := <-served:
			switch {
			case others && i > 1:
				return fail("its call was number %d of %d, and %d of its calls had given up", i+1, crowd+1, givenUp)
			case others:
				return pass("its call was number %d of %d, and %d of its calls had given up", i+1, crowd+1, givenUp)
			}
		case <-time.After(b.patience):
			return fail("%v later %d still wait", b.patience, crowd+1-i)
		}
	}
	return fail("its call was not served")
}

func limitLowered(b *bed) verdict {
	three, two := b.limited()
	h := b.take(three)
	b.take(three)
	b.take(three)
	b.leave(h)
	if b.tryOnce(two) != nil {
		return fail("one that named 2 got in beside two")
	}
	return pass("one that named 2 was refused beside two that named 3")
}

func limitRaised(b *bed) verdict {
	three, two := b.limited()
	one, other := b.take(two), b.take(two)
	if b.tryOnce(three) != nil {
		return fail("one that named 3 got in beside two that named 2")
	}
	b.leave(one)
	b.leave(other)
	for i := range 3 {
		if b.tryOnce(three) == nil {
			return fail("when all that named 2 had left, number %d of 3 was refused", i+1)
		}
	}
	return pass("3 were inside when those that named 2 had left, and not before")
}

// limited are the processes before and after a deployment.
func (b *bed) limited() (three, two locker) {
	at := settings{addrs: []string{b.server().Addr()}, lease: long}
	at.limit = 3
	three = b.open(at)
	at.limit = 2
	return three, b.open(at)
}

func (b *bed) leave(h lock) {
	ctx, cancel := b.background()
	defer cancel()
	if err := h.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
}

func deadReaderRenewed(b *bed) verdict {
	const lease = 3 * time.Second
	const most = lease / 3 // a lease that was prolonged has two thirds left at least
	s := b.server()
	p := b.proxy(s)
	dying := b.open(settings{addrs: []string{p.Addr()}, lease: lease, limit: readers})
	stays := b.open(settings{addrs: []string{s.Addr()}, lease: lease, limit: readers})
	writer := b.open(settings{addrs: []string{s.Addr()}, lease: lease})
	b.take(dying)
	h := b.take(stays)
	p.CutUp()
	p.CutDown()
	b.Cleanup(p.Heal)
	ctx, cancel := b.background()
	w := b.wait(ctx, writer)
	b.Cleanup(cancel)
	time.Sleep(lease + lease/6) // its lease is over, and the next renewal is not due
	if len(w.got) > 0 {
		b.Fatalf("the writer did not wait for the live reader: %v", w.err)
	}
	since := time.Now()
	if err := h.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
	select {
	case got := <-w.got:
		if got == nil {
			return fail("the writer gave up: %v", brief(w.err))
		}
		b.keep(got)
		return pass("the writer came %v after the last live reader had left", ms(time.Since(since)))
	case <-time.After(most):
		return fail("%v after the last live reader has left the writer waits for the dead one", most)
	}
}

// redlockPermits has each of three reach another pair of the masters.
func redlockPermits(b *bed) verdict {
	const limit = 2
	_, addrs := b.masters(3)
	down := b.server()
	down.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	inside := 0
	for i := range addrs {
		reached := slices.Clone(addrs)
		reached[i] = down.Addr()
		l, err := b.lib.open(settings{addrs: reached, lease: long, limit: limit})
		if err != nil {
			b.Fatalf("open %s: %v", b.lib.name, err)
		}
		b.Cleanup(l.close)
		h, err := l.try(ctx, order)
		switch {
		case err == nil:
			b.keep(h)
			inside++
		case errors.Is(err, errors.ErrUnsupported):
			return pass("it refuses to count on several masters: %v", brief(err))
		case !errors.Is(err, errHeld):
			b.Fatalf("try: %v", err)
		}
	}
	if inside > limit {
		return fail("%d hold a lock of %d", inside, limit)
	}
	return pass("%d hold a lock of %d", inside, limit)
}
