package servertest

import (
	"sync"
	"time"
)

// A segment is what travels together in one direction.
type segment struct {
	data    []byte
	due     time.Time       // not delivered before; zero for at once
	hold    <-chan struct{} // not delivered before this is closed
	args    []string        // upwards: the command, nil for other bytes
	verdict Verdict
	reset   bool // in place of data: close the connection here
}

// A queue holds the segments of one direction of a connection, without bound:
// a sender must never wait for a receiver, or a cut in one place would stop
// the server in another.
type queue struct {
	mu     sync.Mutex
	items  []segment
	closed bool
	wake   chan struct{} // holds one token when there may be something new
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) push(s segment) {
	q.mu.Lock()
	q.items = append(q.items, s)
	q.mu.Unlock()
	q.signal()
}

// close lets the receiver finish after what is queued.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop waits for the next segment; false after the last one or once done.
func (q *queue) pop(done <-chan struct{}) (segment, bool) {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			s := q.items[0]
			q.items = q.items[1:]
			q.mu.Unlock()
			return s, true
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return segment{}, false
		}
		select {
		case <-q.wake:
		case <-done:
			return segment{}, false
		}
	}
}
