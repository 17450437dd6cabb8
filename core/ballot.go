package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// ballot is the ownership of a lock on several masters: on each a tenure under one owner id. The algorithm is that of
// the Redis documentation, "Distributed Locks with Redis": the same key and random value on all masters, held by
// whoever has it on a majority, for the lease less the time since before the first command was sent and a margin for
// drift, and undone everywhere by those who fail.
//
// Each look is an attempt with an id of its own, so that what is late of one cannot touch the next. The three rules of
// the type tenure hold for each master; the fourth is about those that have forgotten a lock:
//
//  4. A renewal may bring the lock back on a master, so it counts like an acquire: none is sent once a forget was, or
//     the hold is lost, and where one was not answered before, the forget leaves a tombstone.
type ballot struct {
	stake
	q *quorum

	waiter string // its id in the lines; of the first attempt
	blamed uint64 // the masters whose failure was told
	seen   int64  // the largest token that any master told of

	look *attempt // the latest
	won  *attempt // whose tenures it has
	wake chan struct{}

	mu        sync.Mutex    // guards what follows
	took      time.Duration // by the latest attempt
	nudges    uint64        // the masters that told it that the lock is free, since the last look
	timed     bool          // a timer will wake it
	lined     bool          // it stands in line somewhere
	longest   time.Duration // lease that was asked for
	forgetful bool          // rule 4
	yielding  *yielding
}

func (b *ballot) patience() time.Duration { return b.q.patience(b.cfg.ttl) }

// allowance is for all rounds, each of which keeps to its own time.
func (b *ballot) allowance() time.Duration { return (maxRounds + 1) * b.patience() }

// acquire begins an attempt.
func (b *ballot) acquire(ctx context.Context, waits bool) (*redisconn.Call, bool) {
	a := newAttempt(b)
	b.look = a
	if b.wake == nil {
		b.wake = make(chan struct{}, 1)
	}
	if b.waiter == "" && waits && b.q.isUp() {
		// Not an owner id: to give up a place in line must not free a lock.
		b.waiter = fmt.Sprintf("~%016d%s", b.q.now(), a.owner[:22])
	}
	b.mu.Lock()
	b.nudges = 0
	select {
	case <-b.wake: // by what was told before
	default:
	}
	b.mu.Unlock()
	told := waits && b.waiter != "" && b.q.expect(b)
	if told {
		b.lined = true
		a.place = b.place()
	}
	c := &redisconn.Call{At: b.q.locker.clock.Now(), Done: make(chan struct{})}
	b.q.locker.gate.Join()
	go func() {
		defer b.q.locker.gate.Leave()
		v := a.run(ctx)
		c.Val = v
		if !a.state.CompareAndSwap(attemptRuns, attemptDecided) {
			a.undo("")
		} else if v.token == 0 {
			quiet := "-"
			if v.split {
				quiet = "" // those who were in each other's way may not all know
			}
			a.undo(quiet)
		}
		close(c.Done)
	}()
	return c, told
}

// leave stops listening to an attempt: it undoes itself.
func (b *ballot) leave(*redisconn.Call) {
	if !b.look.state.CompareAndSwap(attemptRuns, attemptLeft) {
		b.look.undo("") // again does no harm where it has failed
	}
}

func (b *ballot) read(c *redisconn.Call) verdict {
	v := c.Val.(verdict)
	for i, t := range b.look.parts { // of each once, as the wait may be long
		if err := b.look.ballots[i].err; err != nil && b.blamed&(1<<i) == 0 {
			b.blamed |= 1 << i
			v.errs = append(v.errs, &memberError{t.node.name, err})
		}
	}
	b.seen = max(b.seen, b.look.seen)
	b.mu.Lock()
	b.took = b.q.locker.clock.Now().Mono - c.At.Mono
	b.mu.Unlock()
	if v.token > 0 {
		b.won, b.owner, b.token, b.sent = b.look, b.look.owner, v.token, c.At.Mono
	}
	return v
}

func (b *ballot) waker() <-chan struct{} { return b.wake }

// accept never has a lock: masters only tell that they are free.
func (b *ballot) accept(timing.Instant) (timing.Instant, bool) { return timing.Instant{}, false }

// onward: not once it was granted, as another attempt would find the lock in its own way.
func (b *ballot) onward() bool { return b.lined && b.won == nil }

func (b *ballot) over() { b.q.unexpect(b) }

func (b *ballot) lost(d time.Duration) {
	b.mu.Lock()
	b.forgetful = true
	b.mu.Unlock()
	time.AfterFunc(d, func() {
		if gate := b.q.locker.gate; gate.Enter() { // after a Shutdown the lease runs out
			defer gate.Leave()
			b.yield()
		}
	})
}

func (b *ballot) undo() {
	b.over()
	switch {
	case b.won != nil:
		b.yield()
	case b.lined:
		b.q.quit(b.names, b.waiter)
	}
}

// renewal is the call to one master; nil, as the lock is lost or being released. The answer is to be handed to answered.
func (b *ballot) renewal(i int, lease time.Duration) *redisconn.Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.forgetful {
		return nil
	}
	t := b.won.parts[i]
	if lease > 0 {
		t.renewals++
		b.longest = max(b.longest, lease)
		b.won.mayHave |= 1 << i
	}
	c := &redisconn.Call{Ctx: context.Background()}
	return c.Set(protocol.Sustain(c.Room[:0], t.key, &b.names.Fence, &t.names.Gone, &t.owner, lease, b.token, b.block))
}

// answered notes that a renewal was, or surely did nothing.
func (b *ballot) answered(i int, lease time.Duration, err error) {
	if lease == 0 || err != nil && !redisconn.Harmless(err) {
		return
	}
	b.mu.Lock()
	b.won.parts[i].renewals--
	b.mu.Unlock()
}

// place is what vote.lua needs to know of one who waits: the lock is kept for it for about as long as it needs to be told
// and to ask.
func (b *ballot) place() string {
	reserve := min(max(3*b.took+10*time.Millisecond, 20*time.Millisecond), b.patience())
	return protocol.VotePlace(b.waiter, reserve, b.q.channel)
}

func (b *ballot) renew(ctx context.Context, lease time.Duration) *redisconn.Call {
	q := b.q
	c := &redisconn.Call{At: q.locker.clock.Now(), Done: make(chan struct{})}
	sum := newTally(len(q.nodes), q.need, func(val any, err error) {
		c.Val, c.Err = val, err
		close(c.Done)
	})
	for i, m := range q.nodes {
		one := b.renewal(i, lease)
		if one == nil {
			sum.add(nil, redisconn.Unsent{Err: errReleased})
			continue
		}
		one.Urgent = true
		one.Then = func(val any, err error) {
			b.answered(i, lease, err)
			sum.add(val, err)
		}
		m.Send(ctx, one)
	}
	return c
}

// renew lengthens many leases: one pipeline for each master.
func (q *quorum) renew(holds []*hold, leases []time.Duration, done func(h *hold, val any, err error)) {
	sums := make([]*tally, len(holds))
	for k, h := range holds {
		_ = h.err() // after a suspension it asks, before anything is brought back: of what is lost, renewal sends nothing
		sums[k] = newTally(len(q.nodes), q.need, func(val any, err error) { done(h, val, err) })
	}
	var all sync.WaitGroup
	for i := range q.nodes {
		all.Go(func() { q.renewOn(i, holds, leases, sums) })
	}
	all.Wait()
}

// renewOn lengthens leases on one master. Those that fail go out once more: the connection may have died with the
// server that is back now, and has forgotten them.
func (q *quorum) renewOn(i int, holds []*hold, leases []time.Duration, sums []*tally) {
	m := q.nodes[i]
	which := make([]int, len(holds))
	for k := range holds {
		which[k] = k
	}
	for try := 1; len(which) > 0; try++ {
		var calls []*redisconn.Call
		var sent, again []int
		var failure error
		for _, k := range which {
			if c := holds[k].tenure.(*ballot).renewal(i, leases[k]); c != nil {
				calls, sent = append(calls, c), append(sent, k)
			} else {
				sums[k].add(nil, redisconn.Unsent{Err: errReleased})
			}
		}
		if len(calls) == 0 {
			return
		}
		m.RunAll(calls, func(j int, val any, err error) {
			k := sent[j]
			holds[k].tenure.(*ballot).answered(i, leases[k], err)
			if err != nil && try == 1 && !permanent(err) {
				again = append(again, k)
				return
			}
			if err != nil {
				failure = err
			}
			sums[k].add(val, err)
		})
		if failure != nil { // once for all, not to drown the rest
			q.locker.cfg.traces.emit(nodeError, Event{Key: holds[sent[0]].key(), Err: &memberError{m.name, failure}})
		}
		which = again
	}
}
