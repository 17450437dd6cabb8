package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

var waiting = []scenario{
	{
		name:   "waiters-poll",
		wrong:  "Waiting keeps Redis busy: with many waiters the holder's own commands come late.",
		source: "https://github.com/discourse/discourse/pull/17886",
		run:    waitersPoll,
	},
	{
		name:   "overtaken",
		wrong:  "The last to come may get the lock first; with bad luck, a waiter starves.",
		source: "https://github.com/mike-marcacci/node-redlock/issues/218",
		run:    overtaken,
	},
	{
		name:   "wake-up-lost",
		wrong:  "The connection of a waiter is down when the lock is released; the message is lost, and it waits on.",
		source: "https://github.com/redisson/redisson/issues/5761",
		run:    func(b *bed) verdict { return wakeUpLost(b, 0) },
	},
	{
		name:   "deleted-by-hand",
		wrong:  "Somebody's key has no expiry and is deleted without a message; the waiters never hear of it.",
		source: "https://github.com/redisson/redisson/issues/3829",
		run:    deletedByHand,
	},
	{
		name:   "waiter-dies",
		wrong:  "The first in line has died; the lock is given to it, or kept for it, while the others wait.",
		source: "https://github.com/redisson/redisson/issues/3730",
		run:    waiterDies,
	},
	{
		name:   "waiter-gives-up",
		wrong:  "A waiter's context ended; it is given the lock all the same, or its place in line blocks the others.",
		source: "https://github.com/amphp/redis/issues/61",
		run:    waiterGivesUp,
	},
	{
		name:   "label-with-space",
		wrong:  "A name with a space breaks the message in which it stands; every waiter sleeps until its next look.",
		source: "https://github.com/redisson/redisson/issues/5761",
		run:    labelWithSpace,
	},
	{
		name:   "address-moves",
		wrong:  "A failover moves the address to another server while the old one lives on. A waiter goes on listening to the old one, and hears late or never that the lock is free.",
		source: "https://github.com/redisson/redisson/issues/2007",
		run:    addressMoves,
	},
}

// waiter is a call that waits for the lock on a goroutine of its own.
type waiter struct {
	got chan lock // nil where it failed
	err error     // once got has something
}

// wait has l wait until ctx ends.
func (b *bed) wait(ctx context.Context, l locker) *waiter {
	w := &waiter{got: make(chan lock, 1)}
	var calls sync.WaitGroup
	calls.Go(func() {
		var h lock
		h, w.err = l.acquire(ctx, order)
		w.got <- h
	})
	b.Cleanup(calls.Wait) // after the cancel of ctx, which is to come from a clean-up added later
	return w
}

// result is what came of it within the scenario's patience: served or not, and if so with what.
func (b *bed) result(w *waiter) (h lock, in bool) {
	select {
	case h = <-w.got:
		if h != nil {
			b.keep(h)
		}
		return h, true
	case <-time.After(b.patience):
		return nil, false
	}
}

// background is a context for waiters that ends with the scenario.
func (b *bed) background() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), b.patience+tryFor)
}

// crowd is how many wait, each in a process of its own.
const crowd = 6

// settled waits until n wait in line, where the library can tell, and else for long enough.
func (b *bed) settled(l locker, n int) {
	q, ok := l.(queued)
	if !ok {
		time.Sleep(50 * time.Millisecond)
		return
	}
	for end := time.Now().Add(b.patience + 10*time.Second); q.waiting(order) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%d do not wait", n)
		}
	}
}

func waitersPoll(b *bed) verdict {
	const windows, window, most = 4, time.Second, 4.0
	s := b.server()
	p := b.proxy(s)
	holder := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	b.take(holder)
	ctx, cancel := b.background()
	for range crowd {
		b.wait(ctx, b.open(settings{addrs: []string{p.Addr()}, lease: long}))
	}
	b.Cleanup(cancel)
	b.settled(holder, crowd)
	time.Sleep(window / 2)
	rate := 0.0 // the largest, as a busy machine stands still at times
	for range windows {
		p.ResetCommands()
		began := time.Now()
		time.Sleep(window)
		rate = max(rate, float64(lockCommands(p))/crowd/time.Since(began).Seconds())
	}
	note := fmt.Sprintf("at most %.1f commands per second and waiter", rate)
	if rate > most {
		return fail("%s", note)
	}
	return pass("%s", note)
}

func overtaken(b *bed) verdict {
	s := b.server()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	holder := b.open(at)
	var lockers []locker
	for range crowd {
		lockers = append(lockers, b.open(at))
	}
	h := b.take(holder)
	ctx, cancel := b.background()
	defer cancel()
	served := make(chan int, crowd)
	var calls sync.WaitGroup
	for i, l := range lockers {
		calls.Go(func() {
			mine, err := l.acquire(ctx, order)
			if err != nil {
				return
			}
			served <- i + 1
			_ = mine.release(ctx)
		})
		b.settled(holder, i+1)
	}
	if err := h.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
	calls.Wait()
	close(served)
	var turns []int
	for i := range served {
		turns = append(turns, i)
	}
	switch {
	case len(turns) < crowd:
		return fail("of %d waiters %v were served", crowd, turns)
	case !slices.IsSorted(turns):
		return fail("not in the order of arrival")
	}
	return pass("first come, first served")
}

// wakeUpLost has a waiter behind one holder, or behind as many as limit says.
func wakeUpLost(b *bed, limit int) verdict {
	s := b.server()
	p := b.proxy(s)
	holder := b.open(settings{addrs: []string{s.Addr()}, lease: long, limit: limit})
	l := b.open(settings{addrs: []string{p.Addr()}, lease: long, limit: limit})
	h := b.take(holder)
	for range limit - 1 {
		b.take(holder)
	}
	ctx, cancel := b.background()
	w := b.wait(ctx, l)
	b.Cleanup(cancel)
	b.settled(holder, 1)
	if limit > 0 {
		time.Sleep(impatience) // subscriptions of semaphores take a while, and none of those tells who waits
	}
	p.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequestAndClose })
	p.Reset()
	if err := h.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
	time.Sleep(300 * time.Millisecond)
	p.OnCommand(nil)
	return b.served(w)
}

// served is the verdict on a waiter that has nobody before it. One that gives up may come again.
func (b *bed) served(w *waiter) verdict {
	since := time.Now()
	h, in := b.result(w)
	switch {
	case !in:
		return fail("%v later it still waits", b.patience)
	case h == nil:
		return pass("it gave up, and said so: %v", brief(w.err))
	}
	return pass("it got the lock after %v", ms(time.Since(since)))
}

func deletedByHand(b *bed) verdict {
	s := b.server()
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	ctx, cancel := b.background()
	if err := rdb.Set(ctx, b.key, "a script's", 0).Err(); err != nil {
		b.Fatalf("SET: %v", err)
	}
	w := b.wait(ctx, l)
	b.Cleanup(cancel)
	b.settled(l, 1)
	select {
	case h := <-w.got:
		if h != nil {
			b.keep(h)
			return fail("it took the lock that another has")
		}
		return fail("it gave up: %v", brief(w.err))
	case <-time.After(500 * time.Millisecond):
	}
	if value := b.stored(rdb); value != "a script's" {
		return fail("the other's key is gone")
	}
	if err := rdb.Del(ctx, b.key).Err(); err != nil {
		b.Fatalf("DEL: %v", err)
	}
	return b.served(w)
}

func waiterDies(b *bed) verdict {
	s := b.server()
	p := b.proxy(s)
	holder := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	dying := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	h := b.take(holder)
	ctx, cancel := b.background()
	b.wait(ctx, dying)
	b.settled(holder, 1)
	w := b.wait(ctx, l)
	b.Cleanup(cancel)
	b.settled(holder, 2)
	p.CutUp() // whatever it does, nobody sees any more
	p.CutDown()
	b.Cleanup(p.Heal)
	if err := h.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
	return b.served(w)
}

func waiterGivesUp(b *bed) verdict {
	s := b.server()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	holder, l := b.open(at), b.open(at)
	h := b.take(holder)
	all, cancel := b.background()
	defer cancel()
	ctx, giveUp := context.WithCancel(all)
	w := b.wait(ctx, l)
	b.settled(holder, 1)
	giveUp()
	if got, in := b.result(w); !in {
		return fail("%v after its context ended it still waits", b.patience)
	} else if got != nil {
		return fail("it got the lock that another has")
	}
	if err := h.release(all); err != nil {
		b.Fatalf("release: %v", err)
	}
	if !b.freed(b.client(s)) {
		return fail("the key is there, and its only waiter has given up")
	}
	return b.served(b.wait(all, l))
}

// labelWithSpace hands the lock over a few times. The fastest of them counts: a busy machine is slow now and then, and a
// lock that does not tell its waiters always.
func labelWithSpace(b *bed) verdict {
	const times, prompt = 5, 250 * time.Millisecond
	s := b.server()
	set := settings{addrs: []string{s.Addr()}, lease: long, label: "api 7f9c"}
	one, two := b.open(set), b.open(set)
	h := b.take(one)
	fastest := tryFor
	for i := range times {
		next := []locker{two, one}[i%2]
		ctx, cancel := b.background()
		w := b.wait(ctx, next)
		b.Cleanup(cancel)
		b.settled(next, 1)
		since := time.Now()
		if err := h.release(ctx); err != nil {
			b.Fatalf("release: %v", err)
		}
		var in bool
		if h, in = b.result(w); !in || h == nil {
			return fail("%v later it still waits", b.patience)
		}
		fastest = min(fastest, time.Since(since))
	}
	if fastest > prompt {
		return fail("the fastest of %d hand-overs took %v", times, ms(fastest))
	}
	return pass("the fastest of %d hand-overs took %v", times, ms(fastest))
}

// addressMoves has commands go to another server, while what was subscribed to lives on at the first.
func addressMoves(b *bed) verdict {
	const turns, most = 5, 400 * time.Millisecond
	old := b.server()
	s := servertest.Replica(b, old)
	p := b.proxy(old)
	holder := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	l := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	h := b.take(holder)
	ctx, cancel := b.background()
	w := b.wait(ctx, l)
	b.Cleanup(cancel)
	b.settled(holder, 1)
	if err := b.client(old).Wait(ctx, 1, 0).Err(); err != nil {
		b.Fatalf("WAIT: %v", err)
	}
	if err := b.client(s).ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		b.Fatalf("REPLICAOF: %v", err)
	}
	b.open(settings{addrs: []string{s.Addr()}, lease: long}) // for its scripts to be there
	p.Move(s.Addr())
	time.Sleep(3 * time.Second) // for what it does to notice
	var took []time.Duration
	for {
		if err := h.release(ctx); err != nil {
			b.Fatalf("release: %v", err)
		}
		since := time.Now()
		next, in := b.result(w)
		if !in {
			return fail("%v later it still waits", b.patience)
		}
		if next == nil {
			return fail("it gave up: %v", brief(w.err))
		}
		if took = append(took, time.Since(since)); len(took) == turns {
			break
		}
		if err := next.release(ctx); err != nil {
			b.Fatalf("release: %v", err)
		}
		h = b.take(holder)
		w = b.wait(ctx, l)
		b.settled(holder, 1)
	}
	slices.Sort(took)
	if d := took[turns/2]; d > most {
		return fail("from a release to the next holder it took %v", ms(d))
	}
	return pass("served by the new server in %v", ms(took[turns/2]))
}
