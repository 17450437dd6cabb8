package redisconn

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxLanes is how many commands or pipelines go-redis is given at a time: so many that a few callers never
	// wait for each other, and few enough that of many callers' commands several travel together, which costs
	// client and server one system call each instead of one for each command.
	maxLanes = 4
	// laneBatch is how many commands share a pipeline: with more, the first would wait long for the last.
	laneBatch = 16
	// laneStall is for how long all lanes may be away before commands go past them: where a round trip takes that
	// long there is little to gain from sharing it.
	laneStall = 10 * time.Millisecond
	// LaneRest is for how long the goroutine of a lane waits for more: go-redis needs a stack that grows several times
	// on a new one.
	LaneRest = 100 * time.Millisecond
)

// lanes take commands to Redis, each one or a pipeline at a time. A command goes out at once while a lane is free;
// else it waits, without a goroutine, for the first that comes back, which takes along what has gathered by then.
// So nothing ever waits for more to come, and a caller that is alone pays nothing.
//
// Where all lanes hang, the few that wait already do so until their callers lose patience and send again, past the
// lanes; later ones go past them at once. A client for many servers has none: one of those may hang for long while the
// others serve.
type lanes struct {
	mu      sync.Mutex
	busy    int
	moved   time.Duration // when a lane went out last
	queue   []*Call
	resting []*lane // that rested last at the end
}

// lane is the goroutine of one.
type lane struct{ next chan *Call } // capacity 1: who takes a lane from those that rest may write one

// Send sends c and returns it at once. The context's values reach go-redis' hooks; its end stops what has not been
// sent yet, and may or may not stop the rest.
func (n *Conn) Send(ctx context.Context, c *Call) *Call {
	c.Ctx, c.At, c.signals = ctx, n.Env.Now(), &n.signals
	var known bool
	if c.Done, known = n.signals.Get().(chan struct{}); !known {
		c.Done = make(chan struct{}, 1)
	}
	n.Env.Gate.Join()
	if n.under.Add(1) == 1 {
		n.heard.Store(int64(c.At.Mono)) // there was nothing to hear before
	}
	if c.Urgent || n.Many() {
		go n.do(c)
		return c
	}
	l := &n.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy < maxLanes:
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

func (n *Conn) do(c *Call) {
	val, err := n.Run(c)
	n.answer(c, val, err)
}

func (n *Conn) answer(c *Call, val any, err error) {
	n.under.Add(-1)
	if err == nil {
		n.heard.Store(int64(n.Env.Now().Mono))
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
		n.do(c)
		for n.lanes.take(self, &calls, n.Env.Now().Mono) {
			n.doAll(slices.DeleteFunc(calls, n.drop))
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

// take moves what waits to calls. Without any the lane is free, and rests.
func (l *lanes) take(self *lane, calls *[]*Call, now time.Duration) bool {
	clear(*calls)
	l.mu.Lock()
	defer l.mu.Unlock()
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

// doAll sends calls, in one pipeline if there are several.
func (n *Conn) doAll(calls []*Call) {
	switch len(calls) {
	case 0:
	case 1:
		n.do(calls[0])
	default:
		n.RunAll(calls, func(i int, val any, err error) { n.answer(calls[i], val, err) })
	}
}
