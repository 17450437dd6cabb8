package holdfast

import (
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/core/internal/single"
)

// WithReleaseInBackground makes [Lock.Release], and with it [Locker.Do], return without waiting for Redis, which saves
// the caller a round trip. Default: Release waits for the answer.
//
// Release still ends the hold before it returns, and still returns [ErrLost] if the clock or a renewal has shown that the
// lock was lost. What only Redis' answer reveals goes to [Trace], as the Err of Released: ErrLost if Redis no longer had
// the lock as ours, or [ErrUnavailable] if Redis did not confirm within 5 s, or a TTL if that is less (with several
// masters within a node timeout). The release is then retried until the lease has expired, as without this option. Do not
// use the option if the error of Release, or of Do, has to show whether Redis still had the lock.
//
// The next call of this Locker for the key, TryAcquire included, waits for the answer before it asks Redis, so that it
// does not find the lock held by its own process. A goroutine that takes one key again and again therefore gains nothing.
// If Redis does not answer, that call ends when it would have ended without the option. Other processes, and other
// Lockers, find the lock held until the release arrives, usually half a round trip later.
//
// The release is independent of the context that Release is given: it neither ends with that context nor carries its
// values. [Locker.Shutdown] waits for the answer. A program that ends without Shutdown may leave the lock to expire. If a
// forced Shutdown abandoned the lock, Release waits as without this option.
func WithReleaseInBackground() CallOption {
	return callOption(func(c *config) error { c.background = true; return nil })
}

// passing are the releases of a Locker that are on their way while their callers go on, see [WithReleaseInBackground].
//
// A call of the process that comes later waits here, before its first look. That is enough for it not to find a lock that
// its own process has released: the release was carried out before it was answered, and the look is sent after. An order
// on the way there would not do, as commands take whatever connection is free. The queue does not know of these
// releases: its next call comes to the front at once, waits here, and the others stay behind it in their order. So those
// that do not queue (TryAcquire, WithReentryID, WithLocalHandover(0, 0)) have the same, without a second rule.
// Those are all told at once, with the one at the front: which of them comes first in Redis is as open as it is for calls
// that begin within one round trip.
//
// We turned down to let the call look at once and again after a refusal: it would stand in line behind its own process, open
// the inbox for that, and make two looks as often as not.
type passing struct {
	under atomic.Int64 // releases; where there are none nothing else is looked at

	mu    sync.Mutex // guards byKey
	byKey map[string]passage
}

// passage is those of one key, of which there can be several: with a re-entry id, or if one goes unanswered.
type passage struct {
	under int
	over  chan struct{} // closed when there are none; nil while nobody waits for that
}

// begin counts one more for key.
func (ps *passing) begin(key string) {
	ps.under.Add(1)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byKey == nil {
		ps.byKey = map[string]passage{}
	}
	p := ps.byKey[key]
	p.under++
	ps.byKey[key] = p
}

// end is for one that has its answer, or nobody to hope for one any more.
func (ps *passing) end(key string) {
	ps.under.Add(-1)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byKey[key]
	if p.under--; p.under > 0 {
		ps.byKey[key] = p
		return
	}
	delete(ps.byKey, key)
	if p.over != nil {
		close(p.over)
	}
}

// over is closed when no release of key is on its way; nil if that is so already.
func (ps *passing) over(key string) <-chan struct{} {
	if ps.under.Load() == 0 {
		return nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.byKey[key]
	if ok && p.over == nil {
		p.over = make(chan struct{})
		ps.byKey[key] = p
	}
	return p.over
}

// follow waits for the releases of this process in front of a's first look, as long as that look may take. After
// that Redis counts as silent, as if the look had gone unanswered.
func (a *acquisition) follow() why {
	over := a.locker.passing.over(a.key.Lock)
	if over == nil {
		return answered
	}
	reason, _ := a.listen(over, nil, nil, a.allowed())
	return reason
}

// pass sends the release of a hold that has ended, for which passing counts one already, and tells of its outcome when
// that is known.
func (h *hold) pass(reason error) {
	l := h.locker
	l.env.Gate.Join()
	held := l.env.Now().Mono - h.began
	h.stake.Pass(h.patience(), func(outcome single.Outcome, cause error) {
		defer l.env.Gate.Leave()
		l.passing.end(h.key())
		if outcome == single.Unknown {
			h.forgetLater()
		}
		if len(h.cfg.traces) == 0 {
			return
		}
		// This may be the goroutine of a lane, and answers to others wait behind it, which no hook may hold up. One that
		// panics ends the program, as in a renewal: nobody could recover.
		l.env.Go(func() {
			result := h.judge(outcome, cause, nil)
			h.cfg.traces.emit(released, Event{Key: h.key(), Token: h.token, Elapsed: held, Err: both(result, reason)})
		})
	})
}
