package redisconn

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// MinLanes is the least number of commands or pipelines that go-redis is given at a time. If the server is near,
	// more would cost more than they bring: several commands of many callers travel together, and that costs client and
	// server one system call each instead of one for each command.
	MinLanes = 3
	// lanePace is the round-trip time for which there is one more lane. A caller that finds all lanes away waits for
	// the next one that comes back. The more lanes there are, the smaller a part of a round trip that is.
	lanePace = 20 * time.Microsecond
	// paceWindow is how long the fastest answer counts as the round-trip time; it may count for up to twice as long.
	// The other answers had to wait for something else.
	paceWindow = time.Second
	// laneBatch is how many commands share a pipeline: with more, the first would wait long for the last.
	laneBatch = 16
	// laneStall is how long all lanes may be away before commands go past them. If a round trip takes that long,
	// sharing it gains little.
	laneStall = 10 * time.Millisecond
	// LaneRest is how long the goroutine of an idle lane waits for more. On a new goroutine, the stack that go-redis
	// needs has to grow several times.
	LaneRest = 100 * time.Millisecond
)

// lanes take commands to Redis, each lane one command, or several together, at a time. A command goes out at once while
// a lane is free. Otherwise it waits, without a goroutine, for the first lane that comes back. That lane takes along
// what has gathered by then, as one command if possible, see bundled. So no command ever waits for more commands to
// come, and a lone caller pays nothing.
//
// If all lanes hang, the few commands that already wait do so until their callers lose patience and send again, past
// the lanes. Later commands go past the lanes at once. A client for many servers has no lanes, because one of its
// servers may hang for long while the others serve.
type lanes struct {
	most int // the number of connections that the client may have, less some for its other users

	mu      sync.Mutex       // guards what follows
	fastest [2]time.Duration // the fastest answer in this window and in the one before
	turned  time.Duration    // when this window began
	busy    int
	moved   time.Duration // when a lane last went out
	queue   []*Call
	resting []*lane // the lane that began to rest last is at the end
}

// lane is the goroutine of one lane.
type lane struct{ next chan *Call } // capacity 1: the call that takes a resting lane writes to it once

// Send sends c and returns it at once. The context's values reach the hooks of go-redis. When the context ends, a
// command that has not been sent yet is not sent. One that has been sent may or may not be stopped.
func (n *Conn) Send(ctx context.Context, c *Call) *Call {
	c.signals = &n.signals
	var known bool
	if c.Done, known = n.signals.Get().(chan struct{}); !known {
		c.Done = make(chan struct{}, 1)
	}
	n.depart(ctx, c)
	if c.Urgent || n.Many() {
		go n.do(c)
		return c
	}
	l := &n.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy < l.width():
		l.busy, l.moved = l.busy+1, c.At.Mono
		if k := len(l.resting) - 1; k >= 0 {
			l.resting[k].next <- c
			l.resting = l.resting[:k]
		} else {
			go n.lane(c)
		}
	case c.At.Mono-l.moved > laneStall:
		go n.do(c)
	default:
		l.queue = append(l.queue, c)
	}
	return c
}

// depart counts c as under way from now on. answer ends that.
func (n *Conn) depart(ctx context.Context, c *Call) {
	c.Ctx, c.At = ctx, n.Env.Now()
	n.Env.Gate.Join()
	if n.under.Add(1) == 1 {
		n.heard.Store(int64(c.At.Mono)) // before, there was nothing to hear
	}
}

// width returns how many lanes there may be now.
func (l *lanes) width() int {
	trip := l.fastest[0]
	if last := l.fastest[1]; trip == 0 || last > 0 && last < trip {
		trip = last
	}
	return max(MinLanes, min(l.most, MinLanes+int(trip/lanePace)))
}

// measured notes that an answer took d and came at now.
func (l *lanes) measured(d, now time.Duration) {
	if now-l.turned > paceWindow {
		l.turned, l.fastest = now, [2]time.Duration{0, l.fastest[0]}
	}
	if l.fastest[0] == 0 || d < l.fastest[0] {
		l.fastest[0] = max(d, 1)
	}
}

// enter takes the place of a lane for a caller that sends its command itself. It does so only if no lane is busy.
func (l *lanes) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 {
		return false
	}
	l.busy++
	return true
}

// leave gives the place back. It sends nothing of what has gathered meanwhile. The lanes that are away do: only one
// caller at a time has a place, and no command waits unless MinLanes are taken.
func (l *lanes) leave(took, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.measured(took, now)
	l.busy--
}

func (n *Conn) do(c *Call) {
	val, err := n.Run(c)
	n.answer(c, val, err)
}

func (n *Conn) answer(c *Call, val any, err error) {
	n.under.Add(-1)
	if err == nil {
		now := n.Env.Now().Mono
		n.heard.Store(int64(now))
		n.took.Store(max(1, int64(now-c.At.Mono)))
	}
	c.Answer(val, err)
	n.Env.Gate.Leave()
}

func (n *Conn) lane(c *Call) {
	self := &lane{next: make(chan *Call, 1)}
	timer := n.Env.Timers.Get(LaneRest)
	defer n.Env.Timers.Rest(timer)
	var calls []*Call
	for c != nil {
		at, sent := n.Env.Now().Mono, true
		n.do(c)
		for n.lanes.take(self, &calls, &at, sent, n.Env.Now().Mono) {
			calls = slices.DeleteFunc(calls, n.drop)
			sent = len(calls) > 0
			n.doAll(calls)
		}
		c = n.await(self, timer)
	}
}

// await returns the call that comes while a lane rests, or nil if none comes. A resting lane does not count as under
// way: Shutdown ends the rest, and does not wait for it.
func (n *Conn) await(self *lane, timer *time.Timer) *Call {
	timer.Reset(LaneRest)
	select {
	case c := <-self.next:
		return c
	case <-timer.C:
	case <-n.Env.Gate.Closing:
	}
	l := &n.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.resting, self); i >= 0 {
		l.resting = slices.Delete(l.resting, i, i+1)
		return nil
	}
	return <-self.next // a call was there already
}

// take moves what waits to calls and reports whether anything did. If not, the lane is free, and rests. at is when it
// sent what has come back.
func (l *lanes) take(self *lane, calls *[]*Call, at *time.Duration, sent bool, now time.Duration) bool {
	clear(*calls)
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent {
		l.measured(now-*at, now)
	}
	*at = now
	k := min(len(l.queue), laneBatch)
	if k == 0 {
		l.busy--
		l.resting = append(l.resting, self)
		return false
	}
	l.moved = now
	*calls = append((*calls)[:0], l.queue[:k]...)
	rest := copy(l.queue, l.queue[k:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return true
}

// Unsent is the failure of a command that was never sent. Err is the reason.
type Unsent struct{ Err error }

func (u Unsent) Error() string { return u.Err.Error() }

func (u Unsent) Unwrap() error { return u.Err }

// drop answers a call that nobody wants any more, and reports whether it did. An acquire that is sent late could
// outlast its tombstone.
func (n *Conn) drop(c *Call) bool {
	err := c.Ctx.Err()
	if err == nil && c.left.Load() {
		err = ErrSilence
	}
	if err != nil {
		n.answer(c, nil, Unsent{Err: err})
	}
	return err != nil
}

// doAll sends calls. If there are several, the common ones go in a bundle and the others in a pipeline.
func (n *Conn) doAll(calls []*Call) {
	if len(calls) > 1 {
		calls = n.bundled(calls)
	}
	switch len(calls) {
	case 0:
	case 1:
		n.do(calls[0])
	default:
		n.RunAll(calls, n.answer)
	}
}
