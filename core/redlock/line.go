package redlock

import (
	"math/bits"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// nudgeGrace is the longest that a waiter gives the other masters, once the first has reported that the lock is free.
const nudgeGrace = 50 * time.Millisecond

// resignAgain is how long a master has to take a waiter out of its line before another message about the waiter makes
// it be asked again.
const resignAgain = 250 * time.Millisecond

// Open opens the inboxes for waiters. It reports whether most of them are up, and returns a channel that is closed the next
// time they are.
func (q *masters) Open() (news <-chan struct{}, up bool) {
	for _, m := range q.all {
		m.inbox.Open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.news, q.up
}

// Close is called when no call will wait any more, and again with over when the Locker is shut down.
func (q *masters) Close(over bool) {
	for _, m := range q.all {
		m.inbox.Close()
		m.Conn.Close(over)
	}
}

// turned counts the inboxes that are up, after one of them has changed.
func (q *masters) turned() {
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
func (q *masters) expect(o *owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.up {
		if o.waiter == "" {
			o.waiter = q.seal.Waiter(o.names.Lock, q.now())
		}
		q.waiters[o.waiter] = o
	}
	return q.up
}

func (q *masters) unexpect(o *owner) {
	q.mu.Lock()
	delete(q.waiters, o.waiter)
	q.mu.Unlock()
}

// nudged receives the message that a lock is free on master i, for a waiter that has an id of ours. It reports whether
// that can be true. The waiter looks once the lock is free on most masters, or a moment after the first message. If it
// looked at once, it would find the lock held on masters that the release has not reached yet.
func (q *masters) nudged(i int, g protocol.Grant) bool {
	q.mu.Lock()
	o := q.waiters[g.Owner]
	q.mu.Unlock()
	if o == nil { // it has abandoned its wait, or got the lock without this master
		names, err := protocol.NameKeys(g.Key)
		if err == nil && q.all[i].inbox.Once(g.Owner, resignAgain) {
			q.resign(i, names, g.Owner)
		}
		return err == nil
	}
	if o.names.Lock != g.Key {
		return false
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
	return true
}

func (o *owner) rouse() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// resign takes a waiter out of the line of one master, which then notifies the next one if the lock is free there. A
// place that stays expires.
func (q *masters) resign(i int, names protocol.Names, waiter string) {
	q.all[i].plead(names.Lock, protocol.EntryLife, func(c *redisconn.Call) { c.Set(protocol.Resign(&names, waiter)) }, nil)
}
