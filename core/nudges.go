package core

import (
	"math/bits"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// nudgeGrace is how long at most one who waits gives the other masters once the first told it that the lock is free.
const nudgeGrace = 50 * time.Millisecond

// expect makes b known, so that masters can tell it that the lock is free, and reports whether most of them can.
func (q *quorum) expect(b *ballot) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.up {
		q.waiters[b.waiter] = b
	}
	return q.up
}

func (q *quorum) unexpect(b *ballot) {
	q.mu.Lock()
	delete(q.waiters, b.waiter)
	q.mu.Unlock()
}

func (q *quorum) open() <-chan struct{} {
	for _, m := range q.nodes {
		m.inbox.open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news
}

func (q *quorum) isUp() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.up
}

func (q *quorum) shut() {
	for _, m := range q.nodes {
		m.inbox.close()
	}
}

// turned counts the inboxes that are up, after one of them has changed.
func (q *quorum) turned() {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, m := range q.nodes {
		if m.inbox.isUp() {
			n++
		}
	}
	up := n >= q.need
	if up && !q.up {
		close(q.news)
		q.news = make(chan struct{})
	}
	q.up = up
}

// nudged is told that a lock is free on one master. Once it is on most, or a moment after the first, the one who waits
// looks: at once, it would find the lock held still where the release has not come yet.
func (q *quorum) nudged(i int, waiter string, names protocol.Names) {
	q.mu.Lock()
	b := q.waiters[waiter]
	q.mu.Unlock()
	if b == nil { // it has given up, or got the lock without this master
		q.resign(i, names, waiter)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nudges |= 1 << i
	switch {
	case bits.OnesCount64(b.nudges) >= q.need:
		b.rouse()
	case !b.timed:
		b.timed = true
		time.AfterFunc(min(nudgeGrace, max(2*time.Millisecond, b.took)), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.timed = false
			if b.nudges != 0 {
				b.rouse()
			}
		})
	}
}

func (b *ballot) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// quit takes a waiter out of the lines of all masters.
func (q *quorum) quit(names protocol.Names, waiter string) {
	for i := range q.nodes {
		q.resign(i, names, waiter)
	}
}

// resign takes a waiter out of the line of one master; the next one is told, if the lock is free there. It is sent once:
// a place that stays expires.
func (q *quorum) resign(i int, names protocol.Names, waiter string) {
	if m := q.nodes[i]; m.Responsive(minNodeTimeout) {
		m.Send(q.locker.gate.Over, new(redisconn.Call).Set(protocol.Resign(&names, waiter)))
	}
}
