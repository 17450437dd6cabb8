package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const (
	defaultAhead  = 10 * time.Second
	defaultBehind = time.Hour
	maxWindow     = 366 * 24 * time.Hour

	claimPause = 100 * time.Millisecond // between the tries of a claim that waits
)

// Claim reports whether the caller is the one to do what is due at tick: of all callers that claim a tick of one name, on
// whichever replica, at most one is told true, however skewed their clocks are and however late they ask; false without an
// error means that another call claimed this tick, or a later one. It raises what Redis remembers as the latest tick of the
// name, so that later ticks shut out earlier ones; there is nothing to release. name has the rules of a lock's key, and a
// lock of the same name is independent of it.
//
// tick is the nominal time, 12:00:00 and not the moment at which a timer fired; Redis has it to the microsecond.
// It must lie in a window around the clock of Redis, see [WithTickWindow]. [WithMinGap] keeps ticks apart
// whose nominal times differ from replica to replica.
//
// At most once means: a claimant that dies, or whose answer is lost, has used the tick up. The exception is a Redis
// that restored an older state, or whose clock went past the tick by the window and was then set back: it may grant a tick again.
//
// With [WithWait] it goes on asking for so long while Redis does not answer, as one and the same claim: if it was granted
// and that answer was lost, the next answer grants it.
//
// Errors: [ErrTick] for a tick outside of the window; [ErrUnavailable] when Redis did not answer within ctx and
// a quarter of the Locker's TTL, at most 1 s, or WithWait if that is more, or when it cannot be told whether the tick went
// to this call;
// [ErrClosed]; [ErrInvalid]. Beside an error the result is false, and the work must not be done.
func (l *Locker) Claim(ctx context.Context, name string, tick time.Time, opts ...ClaimOption) (bool, error) {
	if ctx == nil {
		return false, invalid("nil context")
	}
	cfg, err := configure(l, opts)
	if err != nil {
		return false, err
	}
	if name == "" {
		return false, invalid("empty name")
	}
	names, err := nameKeys(l.cfg.prefix + name)
	if err != nil {
		return false, err
	}
	if at := tick.UnixMicro(); at <= 0 || at >= 1<<53 {
		return false, invalid("Claim(%q) of tick %v", name, tick)
	}
	fail := &opError{act: "claim", key: names.Lock, outcome: ErrClosed}
	if !l.env.Gate.Enter() {
		return false, fail
	}
	defer l.env.Gate.Leave()
	ctx = inTime(ctx)

	fail.outcome = ErrUnavailable
	if fail.context = ctx.Err(); fail.context != nil {
		return false, fail // before the tick can be used up
	}
	limit := max(l.store.Allowance(cfg.ttl), cfg.waiting)
	end := l.env.Now().Mono + limit
	claim := l.store.Claim(names, tick.UnixMicro(), cfg.ttl, protocol.Window{Ahead: cfg.ahead, Behind: cfg.behind, Gap: cfg.gap})
	open := false // an earlier try may have raised the mark
	for try := 1; ; try++ {
		c := claim(ctx)
		if l.env.Await(ctx, c.Done, end-l.env.Now().Mono) != timing.Told {
			if fail.context = ctx.Err(); fail.context == nil && fail.cause == nil {
				fail.cause = redisconn.ErrSilence
			}
			return false, fail
		}
		if c.Err == nil {
			return fail.claimed(c.Val, tick, open)
		}
		cause := public(c.Err)
		cfg.traces.emit(nodeError, Event{Key: names.Lock, Attempts: try, Err: cause})
		if fail.context = ctx.Err(); fail.context == nil || fail.cause == nil { // the first reason says more than the end
			fail.cause = cause
		}
		open = open || !redisconn.Harmless(c.Err)
		if try >= redisconn.Tries && cfg.waiting == 0 || redisconn.Permanent(c.Err) || fail.context != nil {
			return false, fail
		}
		if try >= redisconn.Tries {
			left := end - l.env.Now().Mono
			why := l.env.Await(ctx, l.env.Gate.Closing, min(claimPause, left))
			switch {
			case why == timing.Ended:
				fail.context = ctx.Err()
			case why == timing.Told:
				fail.outcome = ErrClosed
			}
			if why != timing.Elapsed || left <= claimPause {
				return false, fail
			}
		}
	}
}

var errUsedUp = errors.New("the tick is taken, perhaps by this call")

// claimed is what a reply of claim.lua means.
func (e *opError) claimed(val any, tick time.Time, open bool) (bool, error) {
	r, ok := protocol.ReadClaimed(val)
	switch {
	case !ok:
	case r.Code == protocol.ClaimGranted:
		return true, nil
	case r.Code == protocol.ClaimTaken && open:
		e.cause = errUsedUp
		return false, e
	case r.Code == protocol.ClaimTaken, r.Code == protocol.ClaimOther:
		return false, nil
	default:
		e.outcome = ErrTick
		e.cause = fmt.Errorf("%v, by the clock of redis %v off", tick, tick.Sub(time.UnixMicro(r.Now)).Round(time.Millisecond))
		return false, e
	}
	e.cause = protocol.ErrReply
	return false, e
}

// WithMinGap keeps ticks apart: a tick less than d after the latest that was granted counts as one that has run. It is for
// replicas that each count their own periods ("@every 1h"), so that their ticks differ: d is the period then, or a
// little less. Default 0, which refuses only a tick that is not later than the latest.
func WithMinGap(d time.Duration) ClaimOption {
	return claimOption(func(c *config) error {
		if d < 0 || d > maxWindow {
			return invalid("WithMinGap(%v): want 0 to %v", d, maxWindow)
		}
		c.gap = d
		return nil
	})
}

// WithTickWindow sets how far a tick may be behind the clock of Redis and how far ahead of it. Default 1 h and 10 s. Redis
// remembers a name until its latest tick is longer ago than behind, or than [WithMinGap] if that is more. If the clocks of all
// replicas are ahead of that of Redis by more than ahead, no one is granted the tick; if one replica alone is so far ahead, its
// claims fail with [ErrTick] until its clock is right. One that is ahead by less is granted the tick that much too early: the
// adapters cronlock and asynqlock wait then, before they claim or before they run.
func WithTickWindow(behind, ahead time.Duration) ClaimOption {
	return claimOption(func(c *config) error {
		if behind < time.Second || behind > maxWindow || ahead < 0 || ahead > maxWindow {
			return invalid("WithTickWindow(%v, %v): want 1s to %v and 0 to %v", behind, ahead, maxWindow, maxWindow)
		}
		c.behind, c.ahead = behind, ahead
		return nil
	})
}
