package holdfast

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// turns are the lines of a Locker's own calls: one row for each key that a call wants, each limit and each share. Calls of one
// process stand in a row, first come, first served. Only the call at the front contends in Redis, or holds the lock
// there; with a limit of n there are n at the front. When a holder releases, the next call takes the lock over without
// a command, as in lock cohorting (Dice, Marathe, Shavit: "Lock Cohorting", PPoPP 2012). That happens a bounded number
// of times and for a bounded time; then other processes have their turn. Readers wait only behind a reader that is
// asking Redis, and then share what it gets: see readers.
//
// Which share is next is for Redis to decide. A share that holds the lock does not count as waiting there, so twice as many of
// it are at the front: a share that always has calls also always has one in line. A hand-over costs a share nothing. So a
// tenure with a share is a quantum, as in deficit round robin (Shreedhar, Varghese, SIGCOMM 1995), and a short one.
//
// A lock that is taken over stays one tenure in Redis: one owner id, and one lease, which goes on running. Each holder
// has a token of its own, from the block that was reserved for the tenure. Its deadline is that of the lease, as the
// holder before it knew the lease. That is sound only between two calls that want the same of the tenure, see suits.
// Any other call begins a tenure of its own when it comes to the front.
type turns struct {
	env    *timing.Env
	on     bool
	bound  int           // how often a tenure may be handed over
	within time.Duration // and for how long after it began

	rest sync.Pool // of *waiter, for reuse

	mu     sync.Mutex                   // guards what follows, and the rows
	rows   map[string]*row              // by id
	shares map[string]map[*row]struct{} // of each key, those with a share
	over   bool                         // no call may wait any more
}

// quantum is for how long after it began a tenure with a share may be handed over.
const quantum = 5 * time.Millisecond

// rowID returns the key of a call's row in turns, together with the limit. No key has a NUL byte.
func (c *config) rowID(key string) string {
	share := c.shareName()
	if share == "" || c.limit == protocol.NoLimit {
		return key
	}
	return key + "\x00" + share
}

// row exists while a call or a hold is at its front, or while one of its readers has a hold.
type row struct {
	all   *turns
	id    string // the key, and the share if there is one
	other *row   // the next of the same id, with another limit

	limit   int32
	busy    int32        // calls and holds at the front; of readers only calls
	alive   int32        // of readers: holds, and calls that are about to have one
	pace    atomic.Int32 // how long the latest tenure lasted, in µs, if it used up its hand-overs or its time
	holds   []*hold      // the holds at the front; none of readers
	single  [1]*hold     // room for one
	held    *HeldError   // what Redis last answered a call at the front
	err     error
	waiting []*waiter

	// Of readers.
	cfg    *config  // of the call at the front
	latest *readers // the latest to begin, while calls can join it
}

// firstReserve is the number of hand-overs that a tenure has tokens for, unless the tenure before it used up its own.
const firstReserve = 64

// reserve returns the number of hand-overs that the next tenure needs tokens for. Tokens follow the clock of Redis, one
// for each µs, and must not be ahead of it for long: after a loss of all data the next lock would have a smaller token.
// So after a tenure that used up its hand-overs or its time, the next one reserves a token for each µs that it lasted.
func (r *row) reserve() int {
	return min(r.all.bound, max(firstReserve, int(r.pace.Swap(0))))
}

// waiter is a call behind the front.
type waiter struct {
	cfg   *config
	began time.Duration
	found front         // when this call came
	ready chan struct{} // signalled once, when turn is set
	turn  turn
}

// gets gives w its turn.
func (w *waiter) gets(t turn) {
	w.turn = t
	w.ready <- struct{}{}
}

// turn is what a call receives when it comes to the front.
type turn struct {
	row    *row   // whose front it is at; nil for a reader that joins others
	stake  *stake // to go on with; nil: begin one
	locked bool   // the stake holds the lock, with this lease
	lease  lease
	err    error // instead: the failure, which this call has waited out as well; or ErrClosed

	outage outage // in which the call before it was
}

// enter puts a at the front of its row, or behind it, or nowhere if it asks Redis on its own. It returns what to wait for
// if a is behind the front, or a turn if there is a lock to share.
func (ts *turns) enter(a *acquisition) (*waiter, turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	id := a.cfg.rowID(a.key.Lock)
	head := ts.rows[id]
	r := head
	for r != nil && int(r.limit) != a.cfg.limit {
		r = r.other
	}
	switch shared := a.cfg.limit == protocol.NoLimit; {
	case r == nil:
		a.newStake()
		r = a.stake.newRow()
		r.all, r.id, r.limit, r.other = ts, id, int32(a.cfg.limit), head
		r.holds = r.single[:0]
		ts.rows[id] = r
		if key := a.key.Lock; len(id) > len(key) {
			if ts.shares[key] == nil {
				ts.shares[key] = map[*row]struct{}{}
			}
			ts.shares[key][r] = struct{}{}
		}
		fallthrough
	case r.busy < r.places():
		if shared && r.latest.suits(a) {
			return nil, r.latest.join()
		}
		r.busy++
		r.cfg, a.row = a.cfg, r
		return nil, turn{}
	case a.wait == 0, shared && !r.cfg.suits(a.cfg):
		return nil, turn{}
	}
	w, known := ts.rest.Get().(*waiter)
	if !known {
		w = &waiter{ready: make(chan struct{}, 1)}
	}
	w.cfg, w.began, w.found = a.cfg, a.began, r.front()
	a.row, a.behind = r, w
	if ts.over {
		w.gets(turn{err: ErrClosed})
	} else {
		r.waiting = append(r.waiting, w)
	}
	return w, turn{}
}

// places returns how many can be at the front. For readers that is one, as they do not stay there.
func (r *row) places() int32 {
	switch {
	case r.limit == protocol.NoLimit:
		return 1
	case r.hasShare():
		return 2 * r.limit
	}
	return r.limit
}

// hasShare reports whether the calls in the row have a share.
func (r *row) hasShare() bool { return strings.IndexByte(r.id, 0) >= 0 }

// close ends the wait of all calls. It signals each on its own channel: one more channel that all listened to would
// make every hand-over more expensive.
func (ts *turns) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.over = true
	for _, r := range ts.rows {
		for ; r != nil; r = r.other {
			for _, w := range r.waiting {
				w.gets(turn{err: ErrClosed})
			}
			r.waiting = nil
		}
	}
}

// withdraw takes w out of the row. It reports whether w is at the front instead, because it already has its turn.
func (r *row) withdraw(w *waiter) (front bool) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	i := slices.Index(r.waiting, w)
	if i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	return i < 0
}

// here reports whether a call of the Locker holds the lock, and how many of its calls wait for it.
func (ts *turns) here(key string) (held bool, waiting int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	count := func(r *row) {
		waiting += len(r.waiting) + int(r.busy) - len(r.holds)
		held = held || r.alive > 0 || slices.ContainsFunc(r.holds, func(h *hold) bool { return h.ended.Load() == nil })
	}
	for r := ts.rows[key]; r != nil; r = r.other {
		count(r)
	}
	for r := range ts.shares[key] {
		count(r)
	}
	return held, waiting
}

// front is what the calls behind it can report: the hold there whose lease ends first and how many there are, or else
// what Redis last answered a call there.
type front struct {
	first   *hold
	holders int
	held    *HeldError
	err     error
}

// front returns what is known of the front. The mutex must be held.
func (r *row) front() front {
	if len(r.holds) == 0 {
		return front{held: r.held, err: r.err}
	}
	f := front{first: r.holds[0], holders: len(r.holds)}
	for _, h := range r.holds[1:] {
		if h.lease.leaseEnds() < f.first.lease.leaseEnds() {
			f.first = h
		}
	}
	return f
}

// report turns f into the failure that it stands for. That is done only for callers that report it.
func (f *front) report() (*HeldError, error) {
	h := f.first
	if h == nil {
		return f.held, f.err
	}
	left := h.lease.leaseEnds() - h.locker.env.Now().Mono
	held := &HeldError{Key: h.key(), TimeLeft: max(left, time.Millisecond), Holders: f.holders}
	if h.cfg.limit == 1 {
		held.Label = h.stake.cfg.label
	}
	return held, nil
}

// answered notes what Redis answered a, a call at the front. If Redis is failing, the calls behind it that have waited
// through the outage for as long as their own lease get that failure.
func (r *row) answered(a *acquisition) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.held, r.err = a.held, a.err
	if !a.outage.on {
		return
	}
	now := a.locker.env.Now().Mono
	r.waiting = slices.DeleteFunc(r.waiting, func(w *waiter) bool {
		if now-max(a.outage.since, w.began) < w.cfg.ttl {
			return false
		}
		w.gets(turn{err: a.err})
		return true
	})
}

// has puts h, with its first lease, at the front, in place of the call that it was made for. It returns the row that the
// hold has to leave; nil for a reader, which does not stay at the front.
func (r *row) has(h *hold, e lease) *row {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	if r.limit == protocol.NoLimit {
		r.share(h.stake, e)
		return nil
	}
	r.held, r.err = nil, nil
	r.holds = append(r.holds, h)
	return r
}

// next gives the place of h at the front, or of a call if h is nil, to the call that has waited longest. If no call
// waits, the place becomes free. The mutex must be held.
func (r *row) next(h *hold, t turn) {
	if i := slices.Index(r.holds, h); i >= 0 {
		r.holds = slices.Delete(r.holds, i, i+1)
	}
	if len(r.waiting) == 0 {
		r.busy--
		r.end()
		return
	}
	w := r.waiting[0]
	r.waiting[0] = nil
	r.waiting = r.waiting[1:]
	t.row = r
	w.gets(t)
}

// end removes the row if nothing is left in it. The mutex must be held.
func (r *row) end() {
	if r.busy+r.alive > 0 {
		return
	}
	if key, _, has := strings.Cut(r.id, "\x00"); has {
		delete(r.all.shares[key], r)
		if len(r.all.shares[key]) == 0 {
			delete(r.all.shares, key)
		}
	}
	switch head := r.all.rows[r.id]; {
	case head != r:
		for head != nil && head.other != r {
			head = head.other
		}
		if head != nil {
			head.other = r.other
		}
	case r.other == nil:
		delete(r.all.rows, r.id)
	default:
		r.all.rows[r.id] = r.other
	}
}

// leave takes h from the front, a hold that has ended and whose lock nobody takes over.
func (r *row) leave(h *hold) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.next(h, turn{})
}

// handOver gives the lock of h, whose holder is done with it, to the next call in the row. It reports whether it did:
// there must be one, and it must be able to go on with this tenure.
func (r *row) handOver(h *hold, e lease, now timing.Instant) bool {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	t, within := h.stake, r.all.within
	if r.hasShare() {
		within = min(within, quantum)
	}
	switch {
	case len(r.waiting) == 0 || !t.cfg.suits(r.waiting[0].cfg):
		return false
	case t.handed+1 >= t.block || now.Mono >= t.began+within:
		r.pace.Store(int32(min((now.Mono - t.began).Microseconds(), maxHandovers)))
		return false
	case !e.lasts(now),
		h.lease.longest.Load() > int64(t.cfg.ttl): // it was extended: the next call does not want a lease that long
		return false
	}
	t.handed++
	t.passed = now.Mono // the lease was renewed since the acquire, so a release may have to be retried for longer
	r.next(h, turn{stake: t, locked: true, lease: e})
	return true
}

// giveUp takes a, a call that failed, from the front. Its tenure, with the place in line or even the lock, goes to the
// next call if that can use it. giveUp reports whether it did.
func (r *row) giveUp(a *acquisition) bool {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	t := turn{outage: a.outage}
	if len(r.waiting) > 0 && a.stake != nil && a.stake.Onward() && a.stake.cfg.suits(r.waiting[0].cfg) {
		t.stake = a.stake
	}
	r.next(nil, t)
	return t.stake != nil
}

// suits reports whether a call with config o, and with the same limit, may go on with a tenure of c. It must want the
// same lease and label, and nothing that only Redis can give.
func (c *config) suits(o *config) bool { return o.plain() && c.ttl == o.ttl && c.label == o.label }
