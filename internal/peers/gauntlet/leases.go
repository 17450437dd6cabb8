package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

var leases = []scenario{
	{
		name:   "late-reply",
		wrong:  "The reply to an acquire took its time, and the holder counts its lease from there: it goes on when the key has expired and another has it.",
		source: "https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/",
		needs:  []feature{belief, measured},
		run:    lateReply,
	},
	{
		name:   "partition",
		wrong:  "The holder cannot reach Redis, its key expires, another takes the lock, and the holder goes on.",
		source: "https://github.com/redisson/redisson/issues/3636",
		needs:  []feature{belief},
		run:    partition,
	},
	{
		name:   "outage-survived",
		wrong:  "Redis cannot be reached when a renewal is due, for less than the lease has left; the renewal gives up and the lock is lost.",
		source: "https://github.com/redisson/redisson/issues/775",
		needs:  []feature{renewal},
		run:    outageSurvived,
	},
	{
		name:   "idle-commands",
		wrong:  "A lock that is merely held keeps Redis busy: a renewal causes the next one.",
		source: "https://github.com/redis/rueidis/issues/602",
		needs:  []feature{renewal},
		run:    idleCommands,
	},
	{
		name:   "hangs-alive",
		wrong:  "The work hangs while its process lives and renews the lock: nobody else ever gets it.",
		source: "https://github.com/coalesce-labs/catalyst/issues/3249",
		needs:  []feature{renewal},
		run:    hangsAlive,
	},
	{
		name:   "shared-lease-left",
		wrong:  "Two calls share a hold; the one with the long lease leaves, the other dies, and the long lease blocks everybody.",
		source: "https://github.com/redisson/redisson/issues/4217",
		needs:  []feature{identity},
		run:    sharedLeaseLeft,
	},
}

// overlap is how long a holder may take to notice beyond the end of its lease, as timers of a loaded machine are late.
const overlap = 100 * time.Millisecond

func lateReply(b *bed) verdict {
	// Later than timers are, and sooner than anybody gives up.
	const lease, late = 5 * time.Second, 4 * overlap
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: lease})
	arrives := make(chan struct{})
	judged := b.once(p, servertest.HoldReply(arrives))
	time.AfterFunc(late, func() { close(arrives) })
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h, err := l.try(ctx, order)
	if !judged() {
		b.Fatalf("no command named the key")
	}
	if err != nil {
		return pass("it did not wait for the reply: %v", brief(err))
	}
	p.CutUp() // before it renews
	p.CutDown()
	b.Cleanup(p.Heal)
	b.keep(h)
	return b.succeeded(s, h)
}

func partition(b *bed) verdict {
	const lease = 2 * time.Second
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: lease})
	h := b.take(l)
	time.Sleep(lease / 2) // it has renewed once
	p.CutUp()
	p.CutDown()
	b.Cleanup(p.Heal)
	return b.succeeded(s, h)
}

// laborious is a lock whose work reports that it goes on.
type laborious interface{ progress() }

// hangsAlive has a holder work for longer than a lease and than it may be silent, and then hang.
func hangsAlive(b *bed) verdict {
	const lease, silence, slack = 2 * time.Second, time.Second, time.Second
	s := b.server()
	next := b.open(settings{addrs: []string{s.Addr()}, lease: lease})
	h := b.take(b.open(settings{addrs: []string{s.Addr()}, lease: lease, silence: silence}))
	for until := time.Now().Add(lease + silence); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if w, ok := h.(laborious); ok {
			w.progress()
		}
	}
	if h.lost() != nil {
		return fail("it lost the lock while it worked")
	}
	since := time.Now()
	ctx, cancel := b.background()
	w := b.wait(ctx, next)
	b.Cleanup(cancel)
	select {
	case got := <-w.got:
		if got == nil {
			return fail("the next one gave up: %v", brief(w.err))
		}
		b.keep(got)
		if h.lost() == nil {
			return fail("the next one has the lock, and the one that hangs was not told")
		}
		return pass("the next one has the lock %v after the last report, with a lease of %v", ms(time.Since(since)), lease)
	case <-time.After(lease + silence + slack):
		return fail("it hangs and has the lock for %v, with a lease of %v", lease+silence+slack, lease)
	}
}

// succeeded waits until somebody else can have the lock of a holder that is cut off, and looks whether it knows.
func (b *bed) succeeded(s *servertest.Server, h lock) verdict {
	rdb := b.client(s)
	rival := func() bool {
		ok, err := rdb.SetNX(context.Background(), b.key, "rival", time.Minute).Result()
		if err != nil {
			b.Fatalf("SET: %v", err)
		}
		return ok
	}
	for end := time.Now().Add(tryFor); !rival(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("the key does not expire")
		}
	}
	if h.lost() != nil {
		return pass("it knew before another could take it")
	}
	since := time.Now()
	for time.Since(since) < b.patience && h.lost() == nil {
		time.Sleep(time.Millisecond)
	}
	switch late := time.Since(since); {
	case h.lost() == nil:
		return fail("%v after another took the lock it goes on", b.patience)
	case late > overlap:
		return fail("it went on for %v beside the next holder", ms(late))
	}
	return pass("it knew within the reach of timers")
}

func outageSurvived(b *bed) verdict {
	const lease = 8 * time.Second
	s := b.server()
	p := b.proxy(s)
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: lease})
	began := time.Now()
	h := b.take(l)
	// Renewals are due after a third or half of the lease; here the link breaks at a quarter, for three tenths.
	const outage = lease * 3 / 10
	time.Sleep(lease / 4)
	p.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequestAndClose })
	p.Reset()
	time.Sleep(outage)
	p.OnCommand(nil)
	time.Sleep(time.Until(began.Add(lease * 5 / 4)))
	if err := h.lost(); err != nil {
		return fail("lost, by an outage of %v with a lease of %v: %v", outage, lease, brief(err))
	}
	if b.stored(rdb) == "" {
		return fail("the key is gone, and the holder goes on")
	}
	return pass("renewed after the outage")
}

func idleCommands(b *bed) verdict {
	const lease, window, most = 6 * time.Second, 2 * time.Second, 8
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: lease})
	h := b.take(l)
	p.ResetCommands()
	if !b.until(func() bool { return lockCommands(p) > 0 }) {
		b.Fatalf("it does not renew")
	}
	time.Sleep(window)
	n := lockCommands(p)
	if err := h.lost(); err != nil {
		b.Fatalf("the lock was lost: %v", err)
	}
	if n > most {
		return fail("%d commands in %v, with a lease of %v", n, window, lease)
	}
	return pass("%d commands in %v, with a lease of %v", n, window, lease)
}

var losses = []scenario{
	{
		name:   "flushed",
		wrong:  "FLUSHALL, or an eviction, takes the key, and its holder never hears of it.",
		source: "https://github.com/redisson/redisson/issues/4698",
		needs:  []feature{belief},
		run: func(b *bed) verdict {
			return vanished(b, func(_ *servertest.Server, rdb *redis.Client) error {
				return rdb.FlushAll(context.Background()).Err()
			})
		},
	},
	{
		name:   "restarted-empty",
		wrong:  "Redis restarts without its data, and the holder never hears of it.",
		source: "https://github.com/redisson/redisson/issues/775",
		needs:  []feature{belief},
		run: func(b *bed) verdict {
			return vanished(b, func(s *servertest.Server, _ *redis.Client) error {
				s.Kill()
				s.Start()
				return nil
			})
		},
	},
	{
		name:   "token-restarts",
		wrong:  "After the loss of the data the fencing tokens start anew: the next holder's writes are refused, or the former one's are not.",
		source: "https://github.com/redisson/redisson/issues/6510",
		needs:  []feature{fencing},
		run:    tokenRestarts,
	},
}

// vanished takes the key from a live holder, which has until the end of its lease to hear of it: that is when it would
// have stopped by itself had Redis been silent.
func vanished(b *bed, away func(*servertest.Server, *redis.Client) error) verdict {
	const lease = 3 * time.Second
	s := b.server()
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{s.Addr()}, lease: lease})
	h := b.take(l)
	if err := away(s, rdb); err != nil {
		b.Fatalf("%v", err)
	}
	since := time.Now()
	for h.lost() == nil {
		if time.Since(since) > lease+overlap+unheeded {
			return fail("%v later the holder goes on", ms(time.Since(since)))
		}
		time.Sleep(time.Millisecond)
	}
	return pass("told %v later, with a lease of %v", ms(time.Since(since)), lease)
}

// tokenRestarts has a register that refuses tokens smaller than the largest it has seen, as a database would.
func tokenRestarts(b *bed) verdict {
	s := b.server()
	rdb := b.client(s)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	former, next := b.open(at), b.open(at)
	var last int64
	accepts := func(token int64) bool {
		last = max(last, token)
		return token == last
	}
	var old lock
	for range 3 { // so that a counter has got somewhere
		if old != nil {
			if err := old.release(ctx); err != nil {
				b.Fatalf("release: %v", err)
			}
		}
		old = b.take(former)
		if !accepts(old.token()) {
			return fail("token %d after %d", old.token(), last)
		}
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		b.Fatalf("FLUSHALL: %v", err)
	}
	successor := b.take(next)
	if !accepts(successor.token()) {
		return fail("the next holder's token is %d, after %d: its writes are refused", successor.token(), last)
	}
	if accepts(old.token()) {
		return fail("the former holder's write is accepted")
	}
	return pass("the next holder's writes are accepted, the former one's refused")
}

func sharedLeaseLeft(b *bed) verdict {
	const lease = 600 * time.Millisecond
	s := b.server()
	p := b.proxy(s)
	dies := b.open(settings{addrs: []string{p.Addr()}, lease: lease, owner: "job-7"})
	leaves := b.open(settings{addrs: []string{s.Addr()}, lease: long, owner: "job-7"})
	b.take(dies)
	ctx, cancel := b.background()
	b.Cleanup(cancel)
	h, err := leaves.try(ctx, order)
	if errors.Is(err, errHeld) {
		return verdict{noMatch, "the same owner cannot hold it twice"}
	}
	if err != nil {
		b.Fatalf("the second call of one owner: %v", err)
	}
	if err := h.release(ctx); err != nil {
		return fail("the release of the one that leaves: %v", err)
	}
	p.CutUp()
	p.CutDown()
	b.Cleanup(p.Heal)
	if rdb := b.client(s); !b.freed(rdb) {
		return fail("%v after the last holder died the key is still there, for %v", b.patience, rdb.PTTL(ctx, b.key).Val().Round(time.Second))
	}
	return pass("the key went with the lease of the one that stayed")
}
