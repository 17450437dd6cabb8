package holdfast

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/single"
)

// WithReleaseInBackground makes [Lock.Release], and with it [Locker.Do], return without waiting for Redis, which saves
// the caller a round trip. Release still returns [ErrLost] if the clock or a renewal has shown a loss. What only Redis'
// answer reveals goes to Ended of [Trace]: do not use the option if Release, or Do, has to return it. Default: Release
// waits.
//
// The next call of this Locker for the key waits for the answer first, so a goroutine that takes one key again and
// again gains nothing. [Locker.Shutdown] waits for the answer; a program that ends without it may leave the lock to
// expire.
func WithReleaseInBackground() CallOption {
	return callOption(func(c *config) error { c.background = true; return nil })
}

// background counts the releases of a Locker that are on their way while their callers go on, see
// [WithReleaseInBackground].
//
// A later call of the process for the same key waits, before its first look, until these releases are answered. Then Redis
// has carried them out, so the call does not find a lock that its own process has released. This holds for every call,
// whether it stands in a row of turns or not. Commands take whatever connection is free, so an order among them would
// not do.
//
// We turned down to let the call look at once and again after a refusal: it would stand in line behind its own process, open
// the inbox for that, and make two looks as often as not.
type background struct {
	under atomic.Int64 // releases; where there are none nothing else is looked at

	mu    sync.Mutex // guards byKey
	byKey map[string]pending
}

// pending is how many of one key there are. With a re-entry id there can be several, or if one goes unanswered.
type pending struct {
	under int
	over  chan struct{} // closed when there are none; nil while nobody waits for that
}

// begin counts one more for key.
func (b *background) begin(key string) {
	b.under.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byKey == nil {
		b.byKey = map[string]pending{}
	}
	p := b.byKey[key]
	p.under++
	b.byKey[key] = p
}

// end is for one that has its answer, or nobody to hope for one any more.
func (b *background) end(key string) {
	b.under.Add(-1)
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.byKey[key]
	if p.under--; p.under > 0 {
		b.byKey[key] = p
		return
	}
	delete(b.byKey, key)
	if p.over != nil {
		close(p.over)
	}
}

// over is closed when no release of key is on its way; nil if that is so already.
func (b *background) over(key string) <-chan struct{} {
	if b.under.Load() == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.byKey[key]
	if ok && p.over == nil {
		p.over = make(chan struct{})
		b.byKey[key] = p
	}
	return p.over
}

// freeInBackground sends the release of a hold that ended at at, for which background counts one already, and tells of its outcome when
// that is known.
func (h *hold) freeInBackground(at time.Duration) {
	l := h.locker
	l.env.Gate.Join()
	h.stake.Pass(h.patience(), h.lasting(), func(outcome single.Outcome, cause error) {
		defer l.env.Gate.Leave()
		l.background.end(h.key())
		if len(h.cfg.traces) == 0 {
			return
		}
		// This may be the goroutine of a lane, and answers to others wait behind it, which no hook may hold up. One that
		// panics ends the program, as in a renewal: nobody could recover.
		l.env.Go(func() { h.traceEnd(at, h.judge(outcome, cause, nil)) })
	})
}
