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
)

// lanes take commands to Redis, each one or a pipeline at a time. A command goes out at once while a lane is free;
// else it waits, without a goroutine, for the first that comes back, which takes along what has gathered by then.
// So nothing ever waits for more to come, and a caller that is alone pays nothing.
//
// Where all lanes hang, the few that wait already do so until their callers lose patience and send again, past the
// lanes; later ones go past them at once. A client for many servers has none: one of those may hang for long while the
// others serve.
type lanes struct {
	mu    sync.Mutex
	busy  int
	moved time.Duration // when a lane went out last
	queue []job
}

// job is a command with where its answer goes.
type job struct {
	ctx    context.Context
	call   *call
	script *script
	args   []any
}

// send is start for a whole command.
func (n *node) send(ctx context.Context, c *call, s *script, args []any) *call {
	c.at, c.done = n.clock.now(), make(chan struct{})
	n.gate.join()
	if n.under.Add(1) == 1 {
		n.heard.Store(int64(c.at.mono)) // there was nothing to hear before
	}
	j := job{ctx, c, s, args}
	if c.urgent || n.many() {
		go n.do(j)
		return c
	}
	l := &n.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy < maxLanes:
		l.busy, l.moved = l.busy+1, c.at.mono
		go n.lane(j)
	case c.at.mono-l.moved > laneStall:
		go n.do(j)
	default:
		l.queue = append(l.queue, j)
	}
	return c
}

func (n *node) do(j job) {
	val, err := n.run(j.ctx, j.script, j.args)
	n.answer(j, val, err)
}

func (n *node) answer(j job, val any, err error) {
	n.under.Add(-1)
	if err == nil {
		n.heard.Store(int64(n.clock.now().mono))
	}
	j.call.val, j.call.err = val, err
	close(j.call.done)
	if j.call.then != nil {
		j.call.then(val, err)
	}
	n.gate.leave()
}

func (n *node) lane(j job) {
	n.do(j)
	var jobs []job
	for {
		if jobs = n.lanes.take(jobs[:0], n.clock.now().mono); len(jobs) == 0 {
			return
		}
		jobs = slices.DeleteFunc(jobs, n.drop)
		switch len(jobs) {
		case 0:
		case 1:
			n.do(jobs[0])
		default:
			n.doAll(jobs)
		}
	}
}

// take moves what waits to jobs. Without any the lane is free.
func (l *lanes) take(jobs []job, now time.Duration) []job {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := min(len(l.queue), laneBatch)
	if k == 0 {
		l.busy--
		return nil
	}
	l.moved = now
	jobs = append(jobs, l.queue[:k]...)
	rest := copy(l.queue, l.queue[k:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return jobs
}

// unsent is the failure of a command that never left, as nobody wanted it any more.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// drop answers a job that nobody wants any more, and reports whether that is so. Sent late, an acquire could
// outlast its tombstone.
func (n *node) drop(j job) bool {
	err := j.ctx.Err()
	if err == nil && j.call.left.Load() {
		err = errSilence
	}
	if err != nil {
		n.answer(j, nil, unsent{err})
	}
	return err != nil
}

// doAll sends jobs in one pipeline.
func (n *node) doAll(jobs []job) {
	scripts, calls := make([]*script, len(jobs)), make([][]any, len(jobs))
	for i, j := range jobs {
		scripts[i], calls[i] = j.script, j.args
	}
	n.batch(context.Background(), scripts, calls, func(i int, val any, err error) { n.answer(jobs[i], val, err) })
}
