package history

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/model/trace"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// fault is something that happens to a world, again and again.
type fault struct {
	name              string
	rest              time.Duration // between two, about
	own               bool          // it is to run on the test's goroutine
	links             bool          // it is on the links
	restarts, forgets bool          // servers start anew, or lose their data, where they are not durable
	clocks            clocks        // it is on the servers' clocks, which are
	strike            func(w *world, over context.Context, rnd *rand.Rand)
}

// upTo is a random time, not longer than d.
func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// stop stops a worker, mostly one that holds something, often past its lease.
var stop = fault{name: "stop", rest: 100 * time.Millisecond, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	_, p := w.victim(rnd)
	if p.Pause() == nil {
		pause(over, upTo(rnd, 2*w.ttl()))
		p.Resume()
	}
}}

// kill kills a worker and starts another.
var kill = fault{name: "kill", rest: 400 * time.Millisecond, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	slot, p := w.victim(rnd)
	p.kill()
	w.hire(slot)
}}

// rarely is a kill so long after the last one that what that left behind is over.
var rarely = fault{name: kill.name, rest: 1600 * time.Millisecond, strike: kill.strike}

// cut cuts the links of a worker, in one direction or both. What was held back arrives when it is over.
var cut = fault{name: "cut", rest: 150 * time.Millisecond, links: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	links := w.links(rnd)
	way := rnd.IntN(3)
	for _, link := range links {
		if way != 0 {
			link.CutUp()
		}
		if way != 1 {
			link.CutDown()
		}
	}
	pause(over, upTo(rnd, 3*w.ttl()/2))
	for _, link := range links {
		link.Heal()
	}
}}

// slow makes the links of a worker slow, in one direction or both.
var slow = fault{name: "slow", rest: 100 * time.Millisecond, links: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	links := w.links(rnd)
	up, down := upTo(rnd, w.ttl()/3), upTo(rnd, w.ttl()/3)
	if rnd.IntN(3) == 0 {
		up = 0
	}
	for _, link := range links {
		link.DelayUp(up)
		link.DelayDown(down)
	}
	pause(over, upTo(rnd, 2*w.ttl()))
	for _, link := range links {
		link.Delay(0)
	}
}}

// lag makes the answers to the first worker late, all the time.
var lag = fault{name: "lag", rest: time.Millisecond, links: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	for _, link := range w.slots[0] {
		link.DelayDown(w.ttl() / 3)
	}
	<-over.Done()
	for _, link := range w.slots[0] {
		link.Delay(0)
	}
}}

// storm has all clients of a server reconnect, several times in a row.
var storm = fault{name: "storm", rest: 150 * time.Millisecond, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	admin := w.admins[rnd.IntN(w.nodes)]
	for range 1 + rnd.IntN(6) {
		kind := "normal"
		if rnd.IntN(4) == 0 {
			kind = "pubsub"
		}
		_ = admin.Do(over, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").Err() // the server may be down
		if !pause(over, upTo(rnd, 20*time.Millisecond)) {
			return
		}
	}
}}

// crash kills servers, mostly one, and starts them again.
var crash = fault{name: "crash", rest: 300 * time.Millisecond, own: true, restarts: true, forgets: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	n := 1
	switch {
	case w.nodes > 1 && w.exposed:
		n = w.nodes/2 + 1
	case w.nodes > 1 && w.quarantined():
		n += rnd.IntN(2)
	case w.nodes > 1:
		n += rnd.IntN(3)
	}
	since := Before(time.Now())
	down := rnd.Perm(w.nodes)[:n]
	for _, i := range down {
		w.servers[i].Kill()
	}
	if !w.exposed { // or leases end before they can be had again
		pause(over, upTo(rnd, w.ttl()/2))
	}
	for _, i := range down {
		w.servers[i].Start()
	}
	if !w.durable && w.nodes == 1 { // of several, the quarantine keeps those that forgot from voting
		w.forgot(since)
	}
	if w.quarantined() {
		pause(over, ripe) // or there is soon no majority left
	}
}}

// flush has a server forget everything.
var flush = fault{name: "flush", rest: 300 * time.Millisecond, forgets: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	since := Before(time.Now())
	_ = w.admins[rnd.IntN(w.nodes)].FlushAll(context.Background()).Err() // one that fails may have come through
	w.forgot(since)
}}

// del is an operator that deletes the locks.
var del = fault{name: "del", rest: 300 * time.Millisecond, forgets: true, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	since := Before(time.Now())
	keys, _ := w.admins[0].Keys(context.Background(), "*").Result() // none from one that is down
	for _, key := range keys {
		if !strings.Contains(key, ":~") {
			_, _ = w.admins[0].TxPipelined(context.Background(), func(tx redis.Pipeliner) error {
				tx.Del(context.Background(), key)
				if w.unheard != nil {
					tx.RPush(context.Background(), trace.List, trace.Outside(key))
				}
				return nil
			})
		}
	}
	w.forgot(since)
}}

// clock sets a clock forward or back, mostly by 1 ms to 10 s, and now and then by up to an hour, which is in one direction in
// a world. Of several servers those of a minority have clocks of their own.
var clock = fault{name: "clock", rest: 100 * time.Millisecond, forgets: true, clocks: apart, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	w.step(rnd, 1-2*rnd.IntN(2))
}}

// clocksOfAll has all servers go by one clock, as one server of the time may be wrong.
var clocksOfAll = fault{name: clock.name, rest: clock.rest, forgets: true, clocks: shared, strike: clock.strike}

// back sets a clock back, and never forward: nothing is forgotten by that.
var back = fault{name: "back", rest: clock.rest, clocks: apart, strike: func(w *world, over context.Context, rnd *rand.Rand) {
	w.step(rnd, -1)
}}

// backOfAll is back on one clock for all servers.
var backOfAll = fault{name: "back", rest: clock.rest, clocks: shared, strike: back.strike}

// links are those of one worker to some servers.
func (w *world) links(rnd *rand.Rand) (some []*servertest.FaultProxy) {
	slot, _ := w.victim(rnd)
	for _, link := range w.slots[slot] {
		if w.nodes == 1 || rnd.IntN(2) == 0 {
			some = append(some, link)
		}
	}
	return some
}
