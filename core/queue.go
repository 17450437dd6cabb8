package holdfast

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// queues are the lines of a Locker's own calls, one for each key that one of them is after and each limit. Those of one process
// stand in line here, first come first served, and only the one at the front contends in Redis or holds the lock
// there; with a limit of n there are n at the front. When one releases, the next takes the lock over without a command, as
// lock cohorting has it (Dice, Marathe, Shavit: "Lock Cohorting", PPoPP 2012), for a bounded number of times and a bounded time:
// then other processes have their turn. Readers do not queue but behind one that asks Redis, see sharing.
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

// queue exists while a call or hold is at its front, or a hold of its readers.
type queue struct {
	all   *queues
	key   string
	other *queue // of the same key, with another limit
	front
	waiting  []*queued
	*company // if the limit is above 1

	pace atomic.Int64 // µs that the latest tenure lasted, if it was handed over as often or as long as it may be
}

// firstReserve is how many hand-overs a tenure has tokens for whose predecessor had some left.
const firstReserve = 64

// reserve is how many hand-overs the next tenure is to have tokens for. Tokens go by the clock of Redis, one to a µs, and must
// not get ahead of it for long: a lock that is acquired after a loss of all data would have a smaller one. So behind a
// tenure of which no more was to be had, the next reserves a token for each µs that it lasted.
func (q *queue) reserve() int {
	return min(q.all.bound, max(firstReserve, int(q.pace.Swap(0))))
}

// company is who is at the front where there may be several.
type company struct {
	limit  int
	busy   int     // calls and holds; of readers calls alone
	beside []*hold // not of readers

	// Of readers.
	cfg    *config  // of the call at the front
	latest *sharing // the last that began, while it can be joined
	alive  int      // holds
}

// front is what those behind it can be told: of one that holds the lock, or what Redis told a call there last.
type front struct {
	holder *hold
	told   *HeldError
	err    error
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

// lasts tells whether somebody else may go on with it: else it should have been renewed by now.
func (e *lease) lasts(now timing.Instant) bool {
	return !e.over(now) && e.end.Mono-now.Mono >= e.full/3
}

// enter puts a at the front of its queue, or behind it, where it returns what to wait for, or gives it a lock to share.
func (qs *queues) enter(a *acquisition) (*queued, turn) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	head := qs.byKey[a.key.Lock]
	q := head
	for q != nil && q.limit() != a.cfg.limit {
		q = q.other
	}
	shared := a.cfg.limit == protocol.NoLimit
	switch {
	case q == nil:
		a.newStake()
		q = a.stake.newQueue()
		q.all, q.key, q.other = qs, a.key.Lock, head
		qs.byKey[q.key], a.queue = q, q
		if n := a.cfg.limit; n > 1 {
			q.company = &company{limit: n, busy: 1, cfg: a.cfg}
		}
		return nil, turn{}
	case q.company != nil && q.busy < q.places():
		if shared && q.latest.suits(a) {
			return nil, q.latest.admit()
		}
		q.busy++
		q.cfg, a.queue = a.cfg, q
		return nil, turn{}
	case a.wait == 0, shared && !q.cfg.suits(a.cfg):
		return nil, turn{} // asks Redis, on its own
	}
	w, known := qs.rest.Get().(*queued)
	if !known {
		w = &queued{ready: make(chan struct{}, 1)}
	}
	w.cfg, w.began, w.found = a.cfg, a.began, q.front
	if a.queue, a.behind = q, w; qs.over {
		w.comes(turn{err: ErrClosed})
		return w, turn{}
	}
	q.waiting = append(q.waiting, w)
	return w, turn{}
}

func (q *queue) limit() int {
	if q.company == nil {
		return 1
	}
	return q.company.limit
}

// places is how many may be at the front. Readers do not stay there.
func (c *company) places() int {
	if c.limit == protocol.NoLimit {
		return 1
	}
	return c.limit
}

// close ends the wait of all calls. They are told by their own channels: what they all listened to beside would cost each
// hand-over.
func (qs *queues) close() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.over = true
	for _, q := range qs.byKey {
		for ; q != nil; q = q.other {
			for _, w := range q.waiting {
				w.comes(turn{err: ErrClosed})
			}
			q.waiting = nil
		}
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
	for q := qs.byKey[key]; q != nil; q = q.other {
		waiting += len(q.waiting)
		switch {
		case q.company != nil:
			waiting += q.busy - len(q.beside)
			held = held || q.alive+len(q.beside) > 0
		case q.holder == nil:
			waiting++ // the call at the front
		default:
			held = held || q.holder.ended.Load() == nil
		}
	}
	return held, waiting
}

// known is what waiters can be told of the holder, of several the one whose lease ends first.
func (q *queue) known() front {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	f := q.front
	if q.company != nil {
		for _, h := range q.beside {
			if h.deadline.Load() < f.holder.deadline.Load() {
				f.holder = h
			}
		}
	}
	return f
}

// tell is that as a failure, made only for callers that are told of one.
func (f *front) tell() (*HeldError, error) {
	h := f.holder
	if h == nil {
		return f.told, f.err
	}
	left := time.Duration(h.deadline.Load()) - h.locker.env.Now().Mono
	held := &HeldError{Key: h.key(), TimeLeft: max(left, time.Millisecond), Holders: 1}
	if q := h.queue; q.company == nil {
		held.Label = h.stake.cfg.label
	} else {
		q.all.mu.Lock()
		defer q.all.mu.Unlock()
		held.Holders = max(1, len(q.beside))
	}
	return held, nil
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

// holds puts h, which a call at the front has become, there.
func (q *queue) holds(h *hold) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.front = front{holder: h}
	if q.company != nil {
		q.beside = append(q.beside, h)
		q.holder = q.beside[0]
	}
}

// next gives the place at the front of h, or of a call if that is nil, to the call that has waited longest. Without one it is
// free. It needs the mutex.
func (q *queue) next(h *hold, t turn) {
	q.holder = nil
	if q.company != nil {
		if i := slices.Index(q.beside, h); i >= 0 {
			q.beside = slices.Delete(q.beside, i, i+1)
		}
		if len(q.beside) > 0 {
			q.holder = q.beside[0]
		}
	}
	if len(q.waiting) == 0 {
		if q.company != nil {
			q.busy--
		}
		q.end()
		return
	}
	w := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	w.comes(t)
}

// end is for a queue that may be over. It needs the mutex.
func (q *queue) end() {
	if q.company != nil && q.busy+q.alive > 0 {
		return
	}
	switch head := q.all.byKey[q.key]; {
	case head != q:
		for head != nil && head.other != q {
			head = head.other
		}
		if head != nil {
			head.other = q.other
		}
	case q.other == nil:
		delete(q.all.byKey, q.key)
	default:
		q.all.byKey[q.key] = q.other
	}
}

// leave is for a hold at the front that is over, with the lock not to be taken over.
func (q *queue) leave(h *hold) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.next(h, turn{})
}

// handOver gives the lock of h, which its holder is through with, to the next in the queue, if there is one and it
// may have it like that.
func (q *queue) handOver(h *hold, e lease, now timing.Instant) bool {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	t := h.stake
	switch {
	case len(q.waiting) == 0 || !t.cfg.suits(q.waiting[0].cfg):
		return false
	case t.handed+1 >= t.block || now.Mono >= t.began+q.all.within:
		q.pace.Store((now.Mono - t.began).Microseconds())
		return false
	case !e.lasts(now),
		h.longest.Load() > int64(t.cfg.ttl): // it was extended: the next one wants no lease as long as that
		return false
	}
	t.handed++
	t.passed = now.Mono // the lease was renewed since the acquire, a release may have to be tried for longer
	q.next(h, turn{stake: t, held: true, lease: e})
	return true
}

// giveUp is for a call at the front that failed. Its tenure, with the place in line or even the lock, goes to the
// next call that can have it; it reports whether there was one.
func (q *queue) giveUp(a *acquisition) bool {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	t := turn{failing: a.failing, outage: a.outage}
	if len(q.waiting) > 0 && a.stake != nil && a.stake.Onward() && a.stake.cfg.suits(q.waiting[0].cfg) {
		t.stake = a.stake
	}
	q.next(nil, t)
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
			e.Label, e.TimeLeft, e.Holders = held.Label, held.TimeLeft, held.Holders
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
	lock, err := a.come(t)
	if lock == nil && err == nil {
		a.held, a.err = found.tell()
	}
	return lock, err
}

// come is for a call whose turn it is. It returns the lock if that came with it, or an error, or neither, to go on to Redis.
func (a *acquisition) come(t turn) (*Lock, error) {
	a.comes(t)
	if !t.held {
		return nil, nil
	}
	if err := a.ctx.Err(); err != nil {
		return nil, a.failure(err)
	}
	if now := a.locker.env.Now(); !t.lease.over(now) {
		return newLock(a, t.lease, now.Mono, now.Mono), nil
	}
	a.drop()
	return nil, nil
}

func (a *acquisition) comes(t turn) {
	a.behind, a.stake = nil, t.stake
	if t.failing {
		a.failing, a.outage = true, max(t.outage, a.began)
	}
	if t.stake != nil && t.stake.sharing != nil {
		a.queue = nil // readers are not at the front
	}
}

// drop gives up the tenure, unless others share it.
func (a *acquisition) drop() {
	if s := a.stake.sharing; s == nil || s.part(nil) {
		a.stake.undo()
	}
	a.stake = nil
}

// suits tells whether another call, of o, may go on with a tenure of c, with the same limit: if it is for the same lease under
// the same label, and nothing is wanted that only Redis can give.
func (c *config) suits(o *config) bool { return o.plain() && c.ttl == o.ttl && c.label == o.label }
