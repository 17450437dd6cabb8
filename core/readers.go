package holdfast

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// readers are an owner that several calls of a process use at once, with [WithShared]. The first call takes the tenure
// from Redis. Calls that come while it asks join without a command, and so do later calls, for as long as a lock may be
// handed over within the process. After that, a call begins a tenure of its own, behind a writer that waits: readers that
// come and go would otherwise keep the writer out forever.
//
// Each call has a hold of its own, with the token of the tenure, and a reader as its owner. One renewal serves all of
// them, and the last to leave releases the tenure. A hold that was lost counts until its Release, because something that
// has not noticed may still run under it. If that Release never comes, the lease runs out.
type readers struct {
	store.Owner // of the tenure
	row         *row
	first       *stake // of the first call
	lease       lease  // as it was at the beginning: it never gets shorter

	// Guarded by the mutex of the turns.
	all     map[*reader]struct{} // that have not released
	alive   int                  // those whose hold has not ended
	lost    bool                 // another owner holds the lock in Redis
	lasting time.Duration        // the longest lease that one of them asked for

	losing []*hold // those that the first loss has to end
	recent *renewal
}

// renewal is one that was asked for, and the readers that wait for its answer.
type renewal struct {
	at     time.Duration
	d      time.Duration // the lease that it asks for
	then   []func(*redisconn.Call)
	answer *redisconn.Call // nil before
}

// reader is the owner that one call sees.
type reader struct {
	*readers
	hold  *hold // nil until it has one
	ended bool
}

// share lets other calls join the tenure of t, a stake of the call at the front. Those that wait behind it join at once.
// The mutex must be held.
func (r *row) share(t *stake, e lease) {
	rs := &readers{Owner: t.Owner, row: r, first: t, lease: e, all: map[*reader]struct{}{}}
	t.Owner = rs.enter()
	r.latest = rs
	for _, w := range r.waiting {
		w.gets(rs.join())
	}
	r.waiting = nil
	r.busy--
}

// suits reports whether a may join.
func (rs *readers) suits(a *acquisition) bool {
	if rs == nil || !rs.first.cfg.suits(a.cfg) {
		return false
	}
	now := a.locker.env.Now()
	return now.Mono < rs.first.began+rs.row.all.within && rs.lease.lasts(now)
}

// join counts a call in and returns its turn. The mutex must be held.
func (rs *readers) join() turn {
	t := rs.first
	return turn{stake: &stake{Owner: rs.enter(), key: t.key, cfg: t.cfg, token: t.token, began: t.began, block: 1}, locked: true, lease: rs.lease}
}

func (rs *readers) enter() *reader {
	r := &reader{readers: rs}
	rs.all[r] = struct{}{}
	rs.alive++
	rs.row.alive++
	return r
}

// holds notes the hold of r.
func (r *reader) holds(h *hold) {
	r.row.all.mu.Lock()
	r.hold = h
	lost := r.lost
	r.row.all.mu.Unlock()
	if lost {
		h.lose(errOtherOwner)
	}
}

// End is for a call whose hold ended without a release. If nothing is left of the lease, because another owner holds the
// lock in Redis, the other holds have to end as well: see endOthers.
func (r *reader) End(left time.Duration) {
	r.row.all.mu.Lock()
	defer r.row.all.mu.Unlock()
	first := left == 0 && !r.lost
	r.lost = r.lost || first
	r.end()
	r.endUnused()
	for o := range r.all {
		if first && o.hold != nil && !o.ended {
			r.losing = append(r.losing, o.hold)
		}
	}
}

// endOthers ends the holds that lost the lock with one that called End. That call held the mutex of its own hold.
func (r *reader) endOthers() {
	r.row.all.mu.Lock()
	all := r.losing
	r.losing = nil
	r.row.all.mu.Unlock()
	for _, h := range all {
		h.lose(errOtherOwner)
	}
}

// end counts r out of those that are alive. The mutex must be held.
func (r *reader) end() {
	if r.ended {
		return
	}
	r.ended = true
	r.alive--
	r.row.alive--
	if (r.alive == 0 || r.lost) && r.row.latest == r.readers {
		r.row.latest = nil
	}
	r.row.end()
}

// endUnused ends the owner while only calls are left that have lost it, and have not released it yet. The mutex must be held.
func (r *reader) endUnused() {
	if r.alive == 0 && len(r.all) > 0 {
		r.Owner.End(0) // what is left of the lease stays
	}
}

// leave counts out a call that is done with its hold, or never had one. It reports whether that was the last call, which
// then has to release the tenure, and how long that may have to go on; otherwise the outcome of its release.
func (r *reader) leave(lasting time.Duration) (last bool, outcome single.Outcome, _ time.Duration) {
	r.row.all.mu.Lock()
	defer r.row.all.mu.Unlock()
	r.end()
	delete(r.all, r)
	r.endUnused()
	r.lasting = max(r.lasting, lasting)
	if r.lost {
		outcome = single.Lost
	}
	return len(r.all) == 0, outcome, r.lasting
}

func (r *reader) Release(ctx context.Context, limit, lasting time.Duration) (single.Outcome, error) {
	last, outcome, lasting := r.leave(lasting)
	if !last {
		return outcome, nil
	}
	return r.Owner.Release(ctx, limit, lasting)
}

func (r *reader) Pass(limit, lasting time.Duration, then func(single.Outcome, error)) {
	last, outcome, lasting := r.leave(lasting)
	switch {
	case last:
		r.Owner.Pass(limit, lasting, then)
	case then != nil:
		then(outcome, nil)
	}
}

func (r *reader) Undo(since time.Duration) {
	if last, _, _ := r.leave(0); last {
		r.Owner.Undo(since)
	}
}

// Renew with then sends one renewal for all readers that ask for one at about the same time, as they do: their leases
// are one. A reader that wants a longer lease than the others before it sends another for all of them.
func (r *reader) Renew(ctx context.Context, d time.Duration, then func(*redisconn.Call)) *redisconn.Call {
	if then == nil {
		return r.Owner.Renew(ctx, d, nil)
	}
	mu := &r.row.all.mu
	p := &renewal{at: r.row.all.env.Now().Mono, d: d}
	mu.Lock()
	if last := r.recent; last != nil && p.at < last.at+timing.Patience(r.first.cfg.ttl)/2 {
		answer := last.answer
		if d <= last.d && (answer == nil || answer.Err == nil) {
			if answer == nil {
				last.then = append(last.then, then)
			}
			mu.Unlock()
			if answer != nil {
				then(answer)
			}
			return nil
		}
		p.then = slices.Clone(last.then) // which may be withdrawn, and then answers nobody
	}
	p.then = append(p.then, then)
	r.recent = p
	mu.Unlock()
	return r.Owner.Renew(ctx, d, func(c *redisconn.Call) {
		if _, unsent := c.Err.(redisconn.Unsent); unsent {
			return // another one replaced it
		}
		mu.Lock()
		all := p.then
		p.then, p.answer = nil, c
		mu.Unlock()
		for _, then := range all {
			then(c)
		}
	})
}
