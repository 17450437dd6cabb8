package holdfast

import (
	"context"
	"sync/atomic"
	"time"
)

// Progress reports progress of the work under all locks that ctx carries: see [WithProgress]. It sends nothing to Redis and
// does not wait. A lock without that option is left alone, and so is one that has ended.
func Progress(ctx context.Context) {
	for c := range carried(ctx) {
		if h := c.lock.hold; h.lease.progress != nil && !c.lock.released.Load() {
			h.lease.progress.report(h.locker.env.Now().Mono)
		}
	}
}

// progress is how long a hold with WithProgress lasts without another report. Only the hold ends by it: what is known of
// the lease in Redis, which outlasts the hold and may be handed over, stays as it is.
//
// A report moves the end without the hold's mutex. Nevertheless a hold that somebody has seen ended does not come back. A
// report after the end does nothing, whether or not a timer has fired. One that read the clock just before the end may
// take effect just after it, and then others may have found the end passed already. But they only call hold.expire. That
// looks again with the mutex held: either it sees the report, and nothing has happened, or it ends the hold for good and
// cuts the lease, which no report moves.
type progress struct {
	within time.Duration
	end    atomic.Int64 // monotonic: within after the latest report; forever until DoAll begins
}

// newProgress returns the clock of a hold that begins now; nil without the option.
func newProgress(c *config, now time.Duration) *progress {
	if c.progress == 0 {
		return nil
	}
	p := &progress{within: c.progress}
	p.end.Store(int64(forever))
	if !c.gathers {
		p.begin(now)
	}
	return p
}

// begin counts the first report, which is the only one that brings the end closer. It reports whether there was none yet.
func (p *progress) begin(now time.Duration) bool {
	return p.end.CompareAndSwap(int64(forever), int64(p.after(now)))
}

// report never brings the end closer: of two reports, the earlier one may come here last.
func (p *progress) report(now time.Duration) {
	next := int64(p.after(now))
	for end := p.end.Load(); int64(now) < end && end < next; end = p.end.Load() {
		if p.end.CompareAndSwap(end, next) {
			return
		}
	}
}

func (p *progress) after(now time.Duration) time.Duration { return now + min(p.within, forever-now) }

// ends returns when the hold ends; forever if p is nil.
func (p *progress) ends() time.Duration {
	if p == nil {
		return forever
	}
	return time.Duration(p.end.Load())
}

// awaited returns when the next report is due, if a renewal at now had better wait for it, or else 0. A renewal right
// before the end would make the next holder, which needs a moment to notice the end of the lease, wait for longer than a
// TTL from the end. With slack at most half of within, a renewal waits at most once: the report that it then finds is less
// than half of within old.
func (p *progress) awaited(now, slack time.Duration) time.Duration {
	if p == nil {
		return 0
	}
	if end := p.ends(); now < end && end-now < min(slack, p.within/2) {
		return end
	}
	return 0
}
