package redisconn

import (
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	// cleanWidth is how many commands of a cleaner can be under way.
	cleanWidth = 64
	// CleanMost is how many cleanups can wait, about 200 bytes each. They are of calls that failed, whose leases end on
	// their own.
	CleanMost = 100_000
	// The pauses between two tries of one cleanup.
	firstPause, lastPause = 10 * time.Millisecond, time.Second
)

// A Cleanup is a command that has to get to the server although nobody may wait for it any more: the release of a lock,
// or what undoes a call that failed.
type Cleanup interface {
	// Begin makes c the command. It returns false if there is nothing left to do.
	Begin(c *Call) bool
	// End evaluates the answer, and reports whether the cleanup is over.
	End(c *Call) bool
	// Unheard notes that a command was sent and not answered.
	Unheard()
	// Drop tells those that wait for the outcome that it is not known.
	Drop()
	// When returns when to do it.
	When() *Schedule
}

// A Schedule says when a cleanup is due. Times are by the monotonic clock.
type Schedule struct {
	Due      time.Duration // when to begin
	Limit    time.Duration // when to tell that the outcome is not known, and go on; 0 if nobody waits for it
	Until    time.Duration // when there is nothing left that it could do
	Grace    bool          // if the Locker goes on, it goes on for longer: Redis may stand still until then
	Patience time.Duration // how long the server may take to answer

	timing.Date // when the cleaner looks at it next; while it is not listed, one goroutine deals with it

	self  Cleanup
	at    *cleaner // has it, whichever server has the key by now
	pause time.Duration
	state cleanState
	call  *Call // the latest command, until it is answered
}

type cleanState uint8

const (
	cleanWaits cleanState = iota // for Due
	cleanReady                   // it is due, and others are away
	cleanAway                    // its command is under way
)

// cleaner is the one place that cleans up on one server. Cleanups wait in a heap, for one timer, and not on a goroutine.
// Their commands go through the queue as all others do, a few at a time, and one at a time while the server is silent:
// so an outage ends with as many commands as it has left something to undo, and not with all that failed in the
// meantime sending at once.
type cleaner struct {
	server *server

	mu       sync.Mutex // guards what follows, and the schedules in all; taken before the server's, never held in a Cleanup's methods
	all      timing.Agenda[*Schedule]
	ready    []*Schedule
	away     int
	closing  bool
	over     bool
	dropped  int           // since it was last reported
	reported time.Duration // when that was
}

// Clean has the cleanup done by the server that has key. With now its command goes out at once, however many others
// are away.
func (n *Conn) Clean(key string, w Cleanup, now bool) {
	cl, s := n.cleanerOf(key), w.When()
	n.Env.Gate.Join()
	s.self, s.at, s.pause = w, cl, firstPause
	if now {
		cl.begin(s)
	} else {
		cl.put(s, cleanWaits, s.Due)
	}
	cl.pump()
}

// Hurry makes a cleanup due at once if it has not begun.
func Hurry(w Cleanup) {
	s := w.When()
	cl := s.at
	cl.mu.Lock()
	if s.Listed() && s.state == cleanWaits {
		s.When = 0
		cl.all.Moved(s)
	}
	cl.mu.Unlock()
	cl.pump()
}

func (n *Conn) cleanerOf(key string) *cleaner {
	return &n.serverOf(&Call{Args: []any{nil, nil, nil, key}}).cleaner
}

func (cl *cleaner) empty() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.all.Len() == 0
}

// put puts s into the heap, where the cleaner looks at it at wake, or earlier if a time of s requires that.
func (cl *cleaner) put(s *Schedule, state cleanState, wake time.Duration) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	s.state = state
	if state == cleanAway {
		cl.away++
	}
	if cl.over {
		cl.lastTry(s)
	}
	if s.call != nil && s.call.Answered() {
		wake = 0
	}
	if s.Limit > 0 {
		wake = min(wake, s.Limit)
	}
	s.When = min(wake, cl.until(s))
	cl.all.Add(s)
}

// pop takes s out of the heap, and so for the goroutine that calls it. The mutex must be held.
func (cl *cleaner) pop(s *Schedule) {
	cl.all.Remove(s)
	if s.state == cleanAway {
		cl.away--
	}
}

// until returns when s is given up. The mutex must be held.
func (cl *cleaner) until(s *Schedule) time.Duration {
	if s.Grace && !cl.closing {
		return s.Until + protocol.TombstoneLife
	}
	return s.Until
}

// pump does what is due.
func (cl *cleaner) pump() {
	for cl.step() {
	}
}

// step does one thing that is due, and reports whether there was any.
func (cl *cleaner) step() bool {
	now := cl.server.conn.Env.Now().Mono
	cl.mu.Lock()
	if cl.all.Len() > CleanMost {
		s := cl.oldest()
		if s == nil {
			s = cl.all.First()
		}
		cl.pop(s)
		cl.dropped++
		cl.mu.Unlock()
		cl.drop(s)
		return true
	}
	if len(cl.ready) > 0 && cl.hasRoom(now) {
		if s := cl.oldest(); s != nil {
			cl.pop(s)
			cl.mu.Unlock()
			cl.begin(s)
			return true
		}
	}
	if cl.all.Len() == 0 || cl.all.First().When > now {
		report := cl.report(now)
		cl.all.Arm(now)
		cl.mu.Unlock()
		if say := cl.server.conn.Report; report != nil && say != nil {
			say(report)
		}
		return false
	}
	s := cl.all.First()
	if s.state == cleanWaits && (s.call == nil || !s.call.Answered()) && now < cl.until(s) && (s.Limit == 0 || now < s.Limit) {
		s.state = cleanReady
		cl.ready = append(cl.ready, s)
		if s.When = cl.until(s); s.Limit > 0 {
			s.When = min(s.When, s.Limit)
		}
		cl.all.Moved(s)
		cl.mu.Unlock()
		return true
	}
	state, until := s.state, cl.until(s)
	cl.pop(s)
	cl.mu.Unlock()
	switch c := s.call; {
	case c != nil && c.Answered():
		cl.end(s)
	case now >= until:
		cl.drop(s)
	case s.Limit > 0 && now >= s.Limit:
		s.Limit = 0
		s.self.Drop()
		if state == cleanAway {
			cl.put(s, cleanAway, now+s.Patience)
		} else { // and so it gets ready again
			cl.put(s, cleanWaits, now)
		}
	case state == cleanReady:
		cl.put(s, cleanWaits, now)
	case cl.server.waits(c):
		cl.put(s, cleanAway, now+s.Patience)
	default: // the connection may be dead
		cl.put(s, cleanWaits, now)
	}
	return true
}

// oldest takes out of the list of those that are ready the first that still is, or returns nil. The mutex must be held.
func (cl *cleaner) oldest() *Schedule {
	for len(cl.ready) > 0 {
		s := cl.ready[0]
		cl.ready[0] = nil
		if cl.ready = cl.ready[1:]; s.Listed() && s.state == cleanReady {
			return s
		}
	}
	return nil
}

// lastTry has s given up soon: the Locker is shut down. The mutex must be held.
func (cl *cleaner) lastTry(s *Schedule) {
	s.Until = min(s.Until, cl.server.conn.Env.Now().Mono+s.Patience)
}

// waits reports whether c was not sent yet. If all lanes hang, one more goes out.
func (s *server) waits(c *Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.queued {
		s.dispatch(s.conn.Env.Now())
	}
	return c.queued
}

// hasRoom reports whether one more command may go out. The mutex must be held.
func (cl *cleaner) hasRoom(now time.Duration) bool {
	if cl.away == 0 {
		return true
	}
	cl.server.mu.Lock()
	defer cl.server.mu.Unlock()
	return cl.away < cleanWidth && !(cl.server.busy > 0 && cl.server.silent(now))
}

// begin sends the command of s, which is not in the heap.
func (cl *cleaner) begin(s *Schedule) {
	n := cl.server.conn
	if s.call != nil {
		if s.call.Answered() {
			cl.end(s)
			return
		}
		s.self.Unheard()
	}
	c := &Call{Class: Frees, Lasting: true, Then: func(c *Call) { cl.answered(s, c) }}
	if !s.self.Begin(c) {
		n.Env.Gate.Leave()
		return
	}
	s.call = c
	n.depart(n.Env.Gate.Over, c, cl.server)
	at := c.At.Mono
	c.server.push(c)
	cl.put(s, cleanAway, at+s.Patience)
}

// answered takes the answer to c, if nobody deals with s at the moment. If somebody does, c is looked at after that.
func (cl *cleaner) answered(s *Schedule, c *Call) {
	cl.mu.Lock()
	if !s.Listed() || s.call != c {
		cl.mu.Unlock()
		return
	}
	cl.pop(s)
	cl.mu.Unlock()
	cl.end(s)
	cl.pump()
}

// end evaluates the answer to the command of s, which is not in the heap.
func (cl *cleaner) end(s *Schedule) {
	c := s.call
	if s.call = nil; s.self.End(c) {
		cl.server.conn.Env.Gate.Leave()
		return
	}
	cl.put(s, cleanWaits, cl.server.conn.Env.Now().Mono+s.pause)
	s.pause = min(2*s.pause, lastPause)
}

// drop gives up s, which is not in the heap.
func (cl *cleaner) drop(s *Schedule) {
	if c := s.call; c != nil {
		c.Leave()
	}
	s.self.Drop()
	cl.server.conn.Env.Gate.Leave()
}

// report returns what there is to tell about cleanups that were dropped, once a second at most. The mutex must be held.
func (cl *cleaner) report(now time.Duration) error {
	if cl.dropped == 0 || now-cl.reported < time.Second {
		return nil
	}
	k := cl.dropped
	cl.dropped, cl.reported = 0, now
	return fmt.Errorf("holdfast: %d calls that failed are not undone, because more than %d others wait for that: what they left behind in Redis ends with its lease", k, CleanMost)
}

func (cl *cleaner) fire() {
	cl.mu.Lock()
	cl.all.Due()
	cl.mu.Unlock()
	cl.pump()
}

// hasten is called when the Locker is being shut down: nothing has to wait for longer than it must. With over it is shut
// down, and what is left, or comes later, is tried for a moment only.
func (cl *cleaner) hasten(over bool) {
	cl.mu.Lock()
	cl.closing, cl.over = true, over
	for _, s := range cl.all.All() {
		if over {
			cl.lastTry(s)
		}
		s.When = min(s.When, cl.until(s))
	}
	cl.all.Sort()
	cl.mu.Unlock()
	cl.pump()
}
