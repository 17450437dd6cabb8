package redisconn

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// MinLanes is how many commands or pipelines go-redis is given at a time at least. Where a server is near, more cost
	// more than they bring: of many callers' commands several travel together, which costs client and server one system
	// call each instead of one for each command.
	MinLanes = 3
	// lanePace is by how much round-trip time there is one lane more. A caller that finds all of them away waits for the
	// next that comes back, which is a part of a round trip as small as there are many.
	lanePace = 20 * time.Microsecond
	// paceWindow is for how long the fastest answer counts as the round-trip time, or up to twice as long: the others had
	// to wait for something else.
	paceWindow = time.Second
	// laneBatch is how many commands share a pipeline: with more, the first would wait long for the last.
	laneBatch = 16
	// laneStall is for how long all lanes may be away before commands go past them: where a round trip takes that
	// long there is little to gain from sharing it.
	laneStall = 10 * time.Millisecond
	// LaneRest is for how long the goroutine of a lane waits for more: go-redis needs a stack that grows several times
	// on a new one.
	LaneRest = 100 * time.Millisecond
)

// lanes take commands to Redis, each one, or several together, at a time. A command goes out at once while a lane is free;
// else it waits, without a goroutine, for the first that comes back, which takes along what has gathered by then: as one
// command where it can, see bundled.
// So nothing ever waits for more to come, and a caller that is alone pays nothing.
//
// Where all lanes hang, the few that wait already do so until their callers lose patience and send again, past the
// lanes; later ones go past them at once. A client for many servers has none: one of those may hang for long while the
// others serve.
type lanes struct {
	most int // as many as the client may have connections, less some for its other users

	mu      sync.Mutex       // guards what follows
	fastest [2]time.Duration // answer in this window and in the one before
	turned  time.Duration    // when this one began
	busy    int
	moved   time.Duration // when a lane went out last
	queue   []*Call
	resting []*lane // that rested last at the end
}

// lane is the goroutine of one.
type lane struct{ next chan *Call } // capacity 1: a caller that takes a resting lane may write one

// Send sends c and returns it at once. The context's values reach go-redis' hooks; its end stops what has not been
// sent yet, and may or may not stop the rest.
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

// depart counts c as under way from now on; answer ends that.
func (n *Conn) depart(ctx context.Context, c *Call) {
	c.Ctx, c.At = ctx, n.Env.Now()
	n.Env.Gate.Join()
	if n.under.Add(1) == 1 {
		n.heard.Store(int64(c.At.Mono)) // there was nothing to hear before
	}
}

// width is how many lanes there may be now.
func (l *lanes) width() int {
	trip := l.fastest[0]
	if last := l.fastest[1]; trip == 0 || last > 0 && last < trip {
		trip = last
	}
	return max(MinLanes, min(l.most, MinLanes+int(trip/lanePace)))
}

// measured notes how long an answer took that came at now.
func (l *lanes) measured(d, now time.Duration) {
	if now-l.turned > paceWindow {
		l.turned, l.fastest = now, [2]time.Duration{0, l.fastest[0]}
	}
	if l.fastest[0] == 0 || d < l.fastest[0] {
		l.fastest[0] = max(d, 1)
	}
}

// enter takes the place of a lane, for a caller that sends its command itself.
func (l *lanes) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 {
		return false
	}
	l.busy++
	return true
}

// leave gives the place back. What has gathered meanwhile is for the lanes that are away: one caller at most has a place,
// and nothing waits unless MinLanes are taken.
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

// await returns what comes while a lane rests; nil if that is nothing. It does not count as under way meanwhile:
// Shutdown ends the rest, and does not wait for it.
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
	return <-self.next // it was there already
}

// take moves what waits to calls. Without any the lane is free, and rests. What was sent at at has come back.
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

// Unsent is the failure of a command that never left, as nobody wanted it any more.
type Unsent struct{ Err error }

func (u Unsent) Error() string { return u.Err.Error() }

func (u Unsent) Unwrap() error { return u.Err }

// drop answers a call that nobody wants any more, and reports whether that is so. Sent late, an acquire could
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

// doAll sends calls: the common ones in a bundle, the others in a pipeline, if there are several.
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
