package quorum

import (
	"math/bits"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// nudgeGrace is how long a waiter gives the other masters, at most, once the first told it that the lock is free.
const nudgeGrace = 50 * time.Millisecond

// Open opens the inboxes in which waiters are told, and returns a channel that is closed when one is opened anew.
func (q *Masters) Open() <-chan struct{} {
	for _, m := range q.all {
		m.inbox.Open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news
}

// Up tells whether most masters can tell them.
func (q *Masters) Up() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.up
}

// Close is for when no one will wait any more.
func (q *Masters) Close() {
	for _, m := range q.all {
		m.inbox.Close()
	}
}

// turned counts the inboxes that are up, after one of them has changed.
func (q *Masters) turned() {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, m := range q.all {
		if m.inbox.Up() {
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

// expect makes o known, so that masters can tell it that the lock is free, and reports whether most of them can.
func (q *Masters) expect(o *Owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.up {
		q.waiters[o.waiter] = o
	}
	return q.up
}

func (q *Masters) unexpect(o *Owner) {
	q.mu.Lock()
	delete(q.waiters, o.waiter)
	q.mu.Unlock()
}

// nudged is told that a lock is free on one master. Once it is on most, or a moment after the first, the waiter
// looks. If it looked at once, it would find the lock held where the release has not arrived yet.
func (q *Masters) nudged(i int, waiter string, names protocol.Names) {
	q.mu.Lock()
	o := q.waiters[waiter]
	q.mu.Unlock()
	if o == nil { // it has given up, or got the lock without this master
		q.resign(i, names, waiter)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nudges |= 1 << i
	switch {
	case bits.OnesCount64(o.nudges) >= q.need:
		o.rouse()
	case !o.timed:
		o.timed = true
		time.AfterFunc(min(nudgeGrace, max(2*time.Millisecond, o.took)), func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.timed = false
			if o.nudges != 0 {
				o.rouse()
			}
		})
	}
}

func (o *Owner) rouse() {
	select {
	case o.wake <- protocol.Grant{}:
	default:
	}
}

// resign takes a waiter out of the line of one master; the next one is told, if the lock is free there. It is sent once:
// a place that stays expires.
func (q *Masters) resign(i int, names protocol.Names, waiter string) {
	if m := q.all[i]; m.Responsive(minPatience) {
		m.Send(q.env.Gate.Over, new(redisconn.Call).Set(protocol.Resign(&names, waiter)))
	}
}
