package holdfast

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// queues are the lines of a Locker's own calls, one for each key that one of them is after. Those of one process
// stand in line here, first come first served, and only the one at the front contends in Redis or holds the lock
// there. When it releases, the next takes the lock over without a command, as lock cohorting has it (Dice, Marathe,
// Shavit: "Lock Cohorting", PPoPP 2012), for a bounded number of times and a bounded time: then other processes
// have their turn.
//
// A lock that is taken over stays one tenure in Redis: one owner id, one lease, which goes on running. Each
// holder has a token of its own out of the block that was reserved for the tenure, and its deadline is that of the
// lease as the holder before knew it. That is sound between two that want the same of the tenure; others begin
// one of their own, from the front.
type queues struct {
	on     bool
	bound  int           // how often a tenure may be handed over
	within time.Duration // and for how long after it began

	rest sync.Pool // of queued, to use again

	mu    sync.Mutex // guards all below, and the queues
	byKey map[string]*queue
	over  bool // no call waits any more
}

// queue exists while one call or hold is at its front.
type queue struct {
	all *queues
	key string
	front
	waiting []*queued
}

// front is the call at the front.
type front struct {
	holder *hold // nil while a call is there, and then
	told   *HeldError
	err    error // what Redis told that call last
}

// queued is a call behind the front.
type queued struct {
	cfg   *config
	began time.Duration
	found front         // at the beginning
	ready chan struct{} // told once, when turn is set
	turn  turn
}

// comes gives w its turn.
func (w *queued) comes(t turn) {
	w.turn = t
	w.ready <- struct{}{}
}

// turn is what a call gets that comes to the front.
type turn struct {
	stake *stake // to go on with; nil to begin one
	held  bool   // the stake has the lock, for this lease
	lease lease
	err   error // the failure, instead, that this call had waited out as well; or ErrClosed

	failing bool          // Redis fails to serve
	outage  time.Duration // since then
}

// lease is what a holder knows of the lease in Redis.
type lease struct {
	end  timing.Instant // when a holder counts it as over, by both clocks
	full time.Duration  // how long it was at its beginning
}

// leaseFrom is the lease of d that counts from at.
func leaseFrom(at timing.Instant, d time.Duration) lease {
	left := d - timing.Margin(d)
	return lease{end: timing.Instant{Mono: at.Mono + left, Wall: at.Wall + int64(left)}, full: d}
}

func (e *lease) over(now timing.Instant) bool {
	return now.Mono >= e.end.Mono || now.Wall >= e.end.Wall
}

// enter puts a at the front of its queue and returns nil, or behind it.
func (qs *queues) enter(a *acquisition) *queued {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byKey[a.key.Lock]
	switch {
	case q == nil:
		a.newStake()
		if a.queue, a.stake.front = a.stake.front, nil; a.queue == nil {
			a.queue = new(queue)
		}
		a.queue.all, a.queue.key = qs, a.key.Lock
		qs.byKey[a.key.Lock] = a.queue
		return nil
	case a.wait == 0:
		return nil // asks Redis, on its own
	}
	w, known := qs.rest.Get().(*queued)
	if !known {
		w = &queued{ready: make(chan struct{}, 1)}
	}
	w.cfg, w.began, w.found = a.cfg, a.began, q.front
	if a.queue, a.behind = q, w; qs.over {
		w.comes(turn{err: ErrClosed})
		return w
	}
	q.waiting = append(q.waiting, w)
	return w
}

// close ends the wait of all calls. They are told by their own channels: what they all listened to beside would cost each
// hand-over.
func (qs *queues) close() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.over = true
	for _, q := range qs.byKey {
		for _, w := range q.waiting {
			w.comes(turn{err: ErrClosed})
		}
		q.waiting = nil
	}
}

// withdraw takes w out of the queue. Where it has got its turn already it is at the front, with that.
func (q *queue) withdraw(w *queued) (front bool) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	for i := range q.waiting {
		if q.waiting[i] == w {
			q.waiting = slices.Delete(q.waiting, i, i+1)
			return false
		}
	}
	return true
}

// here tells whether a call of the Locker has the lock, and how many of them wait for it.
func (qs *queues) here(key string) (held bool, waiting int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byKey[key]
	if q == nil {
		return false, 0
	}
	held, waiting = q.holder != nil && q.holder.ended.Load() == nil, len(q.waiting)
	if q.holder == nil {
		waiting++ // the call at the front
	}
	return held, waiting
}

// known is what waiters can be told of the holder.
func (q *queue) known() front {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	return q.front
}

// tell is that as a failure, made only for callers that are told of one.
func (f *front) tell() (*HeldError, error) {
	h := f.holder
	if h == nil {
		return f.told, f.err
	}
	left := time.Duration(h.deadline.Load()) - h.locker.env.Now().Mono
	return &HeldError{Key: h.key(), TimeLeft: max(left, time.Millisecond), Label: h.stake.cfg.label, Holders: 1}, nil
}

// tell notes what Redis told a, the call at the front. Where it fails to serve, calls that have waited for that as
// long as their own lease are told so.
func (q *queue) tell(a *acquisition) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.told, q.err = a.held, a.err
	if !a.failing {
		return
	}
	now := a.locker.env.Now().Mono
	q.waiting = slices.DeleteFunc(q.waiting, func(w *queued) bool {
		if now-max(a.outage, w.began) < w.cfg.ttl {
			return false
		}
		w.comes(turn{err: a.err})
		return true
	})
}

// holds puts h, which the call at the front has become, there.
func (q *queue) holds(h *hold) {
	q.all.mu.Lock()
	q.front = front{holder: h}
	q.all.mu.Unlock()
}

// next gives the front to the call that has waited longest; without one the queue is over. It needs the mutex.
func (q *queue) next(t turn) {
	q.holder = nil
	if len(q.waiting) == 0 {
		delete(q.all.byKey, q.key)
		return
	}
	w := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	w.comes(t)
}

// leave is for a hold at the front that is over, with the lock not to be taken over.
func (q *queue) leave() {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.next(turn{})
}

// handOver gives the lock of h, which its holder is through with, to the next in the queue, if there is one and it
// may have it like that.
func (q *queue) handOver(h *hold, e lease, now timing.Instant) bool {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	t := h.stake
	switch {
	case len(q.waiting) == 0 || !t.suits(q.waiting[0].cfg),
		t.handed+1 >= t.block || now.Mono >= t.began+q.all.within,
		e.over(now) || e.end.Mono-now.Mono < e.full/3, // it should have been renewed by now
		h.longest.Load() > int64(t.cfg.ttl):           // it was extended: the next one wants no lease as long as that
		return false
	}
	t.handed++
	t.passed = now.Mono // the lease was renewed since the acquire, a release may have to be tried for longer
	q.next(turn{stake: t, held: true, lease: e})
	return true
}

// giveUp is for a call at the front that failed. Its tenure, with the place in line or even the lock, goes to the
// next call that can have it; it reports whether there was one.
func (q *queue) giveUp(a *acquisition) bool {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	t := turn{failing: a.failing, outage: a.outage}
	if len(q.waiting) > 0 && a.stake != nil && a.stake.Onward() && a.stake.suits(q.waiting[0].cfg) {
		t.stake = a.stake
	}
	q.next(t)
	return t.stake != nil
}

// await waits behind the others of this process until it is at the front, and returns the lock if that came with it,
// or an error, or neither, to go on to Redis.
func (a *acquisition) await(w *queued) (*Lock, error) {
	q := a.queue
	a.told, a.queued = true, true
	if len(a.cfg.traces) > 0 {
		e := Event{Key: a.key.Lock}
		if held, _ := w.found.tell(); held != nil {
			e.Label, e.TimeLeft = held.Label, held.TimeLeft
		}
		a.cfg.traces.emit(waiting, e)
	}

	d := forever
	if a.wait > 0 {
		d = a.wait
	}
	switch a.locker.env.Await(a.ctx, w.ready, d) {
	case timing.Elapsed:
		if !q.withdraw(w) {
			// One look of its own, to name the holder.
			a.held, a.err = w.found.tell()
			a.queue, a.behind, a.wait, a.from = nil, nil, 0, a.locker.env.Now().Mono
			return nil, nil
		}
		<-w.ready
	case timing.Ended:
		known := q.known()
		if a.held, a.err = known.tell(); a.held == nil && a.err == nil {
			a.held, a.err = w.found.tell() // which still tells most
		}
		return nil, a.failure(a.ctx.Err())
	}
	t, found := w.turn, w.found
	*w = queued{ready: w.ready}
	q.all.rest.Put(w)
	if t.err != nil {
		a.queue, a.behind, a.held, a.err = nil, nil, nil, t.err
		if t.err == ErrClosed {
			return nil, a.stopped(closed)
		}
		return nil, a.failure(nil)
	}
	a.come(t)
	if !t.held {
		a.held, a.err = found.tell()
		return nil, nil
	}
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	if now := a.locker.env.Now(); !t.lease.over(now) {
		return newLock(a, t.lease, now.Mono, now.Mono), nil
	}
	a.held, a.err = found.tell()
	a.stake.undo()
	a.stake = nil
	return nil, nil
}

// come is for a call that has come to the front.
func (a *acquisition) come(t turn) {
	a.behind, a.stake = nil, t.stake
	if t.failing {
		a.failing, a.outage = true, max(t.outage, a.began)
	}
}

// suits tells whether another call, of cfg, may go on with the tenure: if it is for the same lease under the same
// label, and nothing is wanted that only Redis can give.
func (s *stake) suits(cfg *config) bool {
	return cfg.plain() && s.cfg.ttl == cfg.ttl && s.cfg.label == cfg.label
}
