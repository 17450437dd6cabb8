package quorum

import (
	"math/bits"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// nudgeGrace is the longest that a waiter gives the other masters, once the first has reported that the lock is free.
const nudgeGrace = 50 * time.Millisecond

// Open opens the inboxes for waiters, and returns a channel that is closed the next time that most of them are up.
func (q *Masters) Open() <-chan struct{} {
	for _, m := range q.all {
		m.inbox.Open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news
}

// Up reports whether most inboxes are up.
func (q *Masters) Up() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.up
}

// Close is called when no call will wait any more.
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

// expect makes o known if most masters can notify it, and reports whether they can. Then they can report to o that the
// lock is free.
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

// nudged receives the message that a lock is free on master i. The waiter looks once the lock is free on most masters,
// or a moment after the first message. If it looked at once, it would find the lock held on masters that the release
// has not reached yet.
func (q *Masters) nudged(i int, waiter string, names protocol.Names) {
	q.mu.Lock()
	o := q.waiters[waiter]
	q.mu.Unlock()
	if o == nil { // it has abandoned its wait, or got the lock without this master
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

// resign takes a waiter out of the line of one master, which then notifies the next one if the lock is free there. The
// command is sent once: a place that stays expires.
func (q *Masters) resign(i int, names protocol.Names, waiter string) {
	if m := q.all[i]; m.Responsive(minPatience) {
		m.Send(q.env.Gate.Over, new(redisconn.Call).Set(protocol.Resign(&names, waiter)))
	}
}
