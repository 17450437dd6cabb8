package core

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
	// laneRest is for how long the goroutine of a lane waits for more: go-redis needs a stack that grows several times
	// on a new one.
	laneRest = 100 * time.Millisecond
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
	queue   []*call
	resting []*lane // that rested last at the end
}

// lane is the goroutine of one.
type lane struct{ next chan *call } // capacity 1: who takes a lane from those that rest may write one

// send sends c and returns it at once. The context's values reach go-redis' hooks; its end stops what has not been
// sent yet, and may or may not stop the rest.
func (n *node) send(ctx context.Context, c *call) *call {
	c.ctx, c.at, c.signals = ctx, n.clock.Now(), &n.signals
	var known bool
	if c.done, known = n.signals.Get().(chan struct{}); !known {
		c.done = make(chan struct{}, 1)
	}
	n.gate.Join()
	if n.under.Add(1) == 1 {
		n.heard.Store(int64(c.at.Mono)) // there was nothing to hear before
	}
	if c.urgent || n.many() {
		go n.do(c)
		return c
	}
	l := &n.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy < maxLanes:
		l.busy, l.moved = l.busy+1, c.at.Mono
		if k := len(l.resting) - 1; k >= 0 {
			l.resting[k].next <- c
			l.resting = l.resting[:k]
		} else {
			go n.lane(c)
		}
	case c.at.Mono-l.moved > laneStall:
		go n.do(c)
	default:
		l.queue = append(l.queue, c)
	}
	return c
}

func (n *node) do(c *call) {
	val, err := n.run(c)
	n.answer(c, val, err)
}

func (n *node) answer(c *call, val any, err error) {
	n.under.Add(-1)
	if err == nil {
		n.heard.Store(int64(n.clock.Now().Mono))
	}
	c.val, c.err = val, err
	c.answered.Store(true)
	then := c.then
	c.done <- struct{}{}
	if then != nil {
		then(val, err)
	}
	n.gate.Leave()
}

func (n *node) lane(c *call) {
	self := &lane{next: make(chan *call, 1)}
	timer := n.timers.Get(laneRest)
	defer n.timers.Rest(timer)
	var calls []*call
	for c != nil {
		n.do(c)
		for n.lanes.take(self, &calls, n.clock.Now().Mono) {
			n.doAll(slices.DeleteFunc(calls, n.drop))
		}
		c = n.await(self, timer)
	}
}

// await returns what comes while a lane rests; nil if that is nothing. It does not count as under way meanwhile:
// Shutdown ends the rest, and does not wait for it.
func (n *node) await(self *lane, timer *time.Timer) *call {
	timer.Reset(laneRest)
	select {
	case c := <-self.next:
		return c
	case <-timer.C:
	case <-n.gate.Closing:
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
func (l *lanes) take(self *lane, calls *[]*call, now time.Duration) bool {
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

// unsent is the failure of a command that never left, as nobody wanted it any more.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// drop answers a call that nobody wants any more, and reports whether that is so. Sent late, an acquire could
// outlast its tombstone.
func (n *node) drop(c *call) bool {
	err := c.ctx.Err()
	if err == nil && c.left.Load() {
		err = errSilence
	}
	if err != nil {
		n.answer(c, nil, unsent{err})
	}
	return err != nil
}

// doAll sends calls, in one pipeline if there are several.
func (n *node) doAll(calls []*call) {
	switch len(calls) {
	case 0:
	case 1:
		n.do(calls[0])
	default:
		n.runAll(calls, func(i int, val any, err error) { n.answer(calls[i], val, err) })
	}
}
