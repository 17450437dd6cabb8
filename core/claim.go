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

// Claim reports whether the caller is the one to do the work that is due at tick. Of all callers that claim one tick of a
// name, on any replica, at most one gets true, however skewed their clocks are and however late they ask. False without
// an error means that another call claimed this tick or a later one.
//
// Claim raises the latest tick that Redis remembers for the name, so later ticks shut out earlier ones. There is nothing
// to release. name follows the rules for a lock's key; a lock of the same name is independent of it.
//
// tick is the nominal time, such as 12:00:00, not the moment at which a timer fired. Redis stores it in microseconds. It
// must lie in a window around Redis' time, see [WithTickWindow]. If replicas compute different ticks for the same work,
// use [WithMinGap].
//
// At most once means that a claimant that crashes, or whose answer is lost, has used up the tick. Redis can grant a tick
// again only if it has lost data, as it can lose a lock, or if its clock passed the tick by the whole window and was then
// set back.
//
// While Redis does not answer, Claim keeps trying for as long as [WithWait] says. The default is a quarter of the
// Locker's TTL, or 1 s if that is less, and with [NewRedLock] a few node timeouts. A shorter WithWait is not an error,
// but counts as that. All requests of a call are one claim: if the tick was granted and the answer was lost, the next
// answer still grants it.
//
// Errors:
//
//   - [ErrTick]: the tick is outside of the window.
//   - [ErrUnavailable]: Redis did not answer within that time, or before ctx ended; or nobody can know whether this call
//     got the tick.
//   - [ErrClosed] and [ErrInvalid].
//
// With an error the result is false, and the work must not be done.
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

// WithMinGap keeps ticks apart: a tick less than d after the latest granted one counts as already taken. It is for replicas
// that count their periods on their own ("@every 1h"), so that their ticks differ. Set d to the period, or a little less.
// Default: 0, which refuses only a tick that is not later than the latest one.
func WithMinGap(d time.Duration) ClaimOption {
	return claimOption(func(c *config) error {
		if d < 0 || d > maxWindow {
			return invalid("WithMinGap(%v): want 0 to %v", d, maxWindow)
		}
		c.gap = d
		return nil
	})
}

// WithTickWindow sets how far a tick may be behind Redis' time and how far ahead of it. Outside of this window a claim
// fails with [ErrTick]. Default: 1 h behind and 10 s ahead. Redis remembers a name until its latest tick is older than
// behind, or than the gap of [WithMinGap] if that is longer.
//
// A replica whose clock is ahead of Redis' by more than ahead fails with ErrTick until its clock is right. If all replicas
// are that far ahead, nobody gets the tick. A replica that is ahead by less gets its ticks too early, by as much; the
// adapters cronlock and asynqlock then wait, see there.
func WithTickWindow(behind, ahead time.Duration) ClaimOption {
	return claimOption(func(c *config) error {
		if behind < time.Second || behind > maxWindow || ahead < 0 || ahead > maxWindow {
			return invalid("WithTickWindow(%v, %v): want 1s to %v and 0 to %v", behind, ahead, maxWindow, maxWindow)
		}
		c.behind, c.ahead = behind, ahead
		return nil
	})
}
