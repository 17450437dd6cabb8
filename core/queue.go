package holdfast

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// queues are the lines of a Locker's own calls: one queue for each key that a call wants, and for each limit. Calls of
// one process queue here, first come, first served. Only the call at the front contends in Redis, or holds the lock
// there; with a limit of n there are n at the front. When a holder releases, the next call takes the lock over without
// a command, as in lock cohorting (Dice, Marathe, Shavit: "Lock Cohorting", PPoPP 2012). That happens a bounded number
// of times and for a bounded time; then other processes have their turn. Readers queue only behind a reader that is
// asking Redis, see sharing.
//
// A lock that is taken over stays one tenure in Redis: one owner id, and one lease, which goes on running. Each holder
// has a token of its own, from the block that was reserved for the tenure. Its deadline is that of the lease, as the
// holder before it knew the lease. That is sound only between two calls that want the same of the tenure, see suits.
// Any other call begins a tenure of its own when it comes to the front.
type queues struct {
	on     bool
	bound  int           // how often a tenure may be handed over
	within time.Duration // and for how long after it began

	rest sync.Pool // of *queued, for reuse

	mu    sync.Mutex // guards what follows, and the queues
	byKey map[string]*queue
	over  bool // no call may wait any more
}

// queue exists while a call or a hold is at its front, or while one of its readers has a hold.
type queue struct {
	all   *queues
	key   string
	other *queue // the next of the same key, with another limit
	front
	waiting  []*queued
	*company // if the limit is above 1

	pace atomic.Int64 // how long the latest tenure lasted, in µs, if it used up its hand-overs or its time
}

// firstReserve is the number of hand-overs that a tenure has tokens for, unless the tenure before it used up its own.
const firstReserve = 64

// reserve returns the number of hand-overs that the next tenure needs tokens for. Tokens follow the clock of Redis, one
// for each µs, and must not be ahead of it for long: after a loss of all data the next lock would have a smaller token.
// So after a tenure that used up its hand-overs or its time, the next one reserves a token for each µs that it lasted.
func (q *queue) reserve() int {
	return min(q.all.bound, max(firstReserve, int(q.pace.Swap(0))))
}

// company is the state of a queue that can have several at its front.
type company struct {
	limit  int
	busy   int     // calls and holds at the front; of readers only calls
	beside []*hold // the holds at the front; none of readers

	// Of readers.
	cfg    *config  // of the call at the front
	latest *sharing // the latest to begin, while calls can join it
	alive  int      // holds, and calls that are about to have one
}

// front is what the calls behind it can report: the hold there, or else what Redis last answered the call there.
type front struct {
	holder *hold
	told   *HeldError
	err    error
}

// queued is a call behind the front.
type queued struct {
	cfg   *config
	began time.Duration
	found front         // the front when this call came
	ready chan struct{} // signalled once, when turn is set
	turn  turn
}

// comes gives w its turn.
func (w *queued) comes(t turn) {
	w.turn = t
	w.ready <- struct{}{}
}

// turn is what a call receives when it comes to the front.
type turn struct {
	stake *stake // to go on with; nil: begin one
	held  bool   // the stake holds the lock, with this lease
	lease lease
	err   error // instead: the failure, which this call has waited out as well; or ErrClosed

	failing bool          // Redis is failing
	outage  time.Duration // since then
}

// lease is what a holder knows of its lease in Redis.
type lease struct {
	end  timing.Instant // when the holder counts it as expired, by both clocks
	full time.Duration  // its length at its beginning
}

// leaseFrom returns the lease of length d that counts from at.
func leaseFrom(at timing.Instant, d time.Duration) lease {
	left := d - timing.Margin(d)
	return lease{end: timing.Instant{Mono: at.Mono + left, Wall: at.Wall + int64(left)}, full: d}
}

func (e *lease) over(now timing.Instant) bool {
	return now.Mono >= e.end.Mono || now.Wall >= e.end.Wall
}

// lasts reports whether another call may go on with the lease. Too little of it is left if it should have been renewed
// by now.
func (e *lease) lasts(now timing.Instant) bool {
	return !e.over(now) && e.end.Mono-now.Mono >= e.full/3
}

// enter puts a at the front of its queue, or behind it. It returns what to wait for if a is behind the front, or a turn
// if there is a lock to share.
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
		return nil, turn{} // it asks Redis on its own, outside the queue
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

// places returns how many can be at the front. For readers that is one, as they do not stay there.
func (c *company) places() int {
	if c.limit == protocol.NoLimit {
		return 1
	}
	return c.limit
}

// close ends the wait of all calls. It signals each on its own channel: one more channel that all listened to would
// make every hand-over more expensive.
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

// withdraw takes w out of the queue. It reports whether w is at the front instead, because it already has its turn.
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

// here reports whether a call of the Locker holds the lock, and how many of its calls wait for it.
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

// known returns the front for waiters to report: if there are several holders, the one whose lease ends first.
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

// tell turns f into the failure that it stands for. That is done only for callers that report it.
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

// tell notes what Redis answered a, the call at the front. If Redis is failing, the calls behind it that have waited
// through the outage for as long as their own lease get that failure.
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

// holds puts h at the front, in place of the call that it was made for.
func (q *queue) holds(h *hold) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.front = front{holder: h}
	if q.company != nil {
		q.beside = append(q.beside, h)
		q.holder = q.beside[0]
	}
}

// next gives the place of h at the front, or of a call if h is nil, to the call that has waited longest. If no call
// waits, the place becomes free. The mutex must be held.
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

// end removes the queue if nothing is left in it. The mutex must be held.
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

// leave takes h from the front, a hold that has ended and whose lock nobody takes over.
func (q *queue) leave(h *hold) {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.next(h, turn{})
}

// handOver gives the lock of h, whose holder is done with it, to the next call in the queue. It reports whether it did:
// there must be one, and it must be able to go on with this tenure.
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
		h.longest.Load() > int64(t.cfg.ttl): // it was extended: the next call does not want a lease that long
		return false
	}
	t.handed++
	t.passed = now.Mono // the lease was renewed since the acquire, so a release may have to be retried for longer
	q.next(h, turn{stake: t, held: true, lease: e})
	return true
}

// giveUp takes a, a call that failed, from the front. Its tenure, with the place in line or even the lock, goes to the
// next call if that can use it. giveUp reports whether it did.
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

// await waits behind the other calls of this process until a is at the front. It returns the lock if that came with the
// turn, or an error, or neither, to go on to Redis.
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
			// One look of its own, so that the error names the holder.
			a.held, a.err = w.found.tell()
			a.queue, a.behind, a.wait, a.from = nil, nil, 0, a.locker.env.Now().Mono
			return nil, nil
		}
		<-w.ready
	case timing.Ended:
		known := q.known()
		if a.held, a.err = known.tell(); a.held == nil && a.err == nil {
			a.held, a.err = w.found.tell() // the best that is known
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

// come takes a turn. It returns the lock if that came with the turn, or an error, or neither, to go on to Redis.
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

// drop abandons the tenure, unless others share it.
func (a *acquisition) drop() {
	if s := a.stake.sharing; s == nil || s.part(nil) {
		a.stake.undo()
	}
	a.stake = nil
}

// suits reports whether a call with config o, and with the same limit, may go on with a tenure of c. It must want the
// same lease and label, and nothing that only Redis can give.
func (c *config) suits(o *config) bool { return o.plain() && c.ttl == o.ttl && c.label == o.label }
