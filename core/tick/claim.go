package tick

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// ErrWindow: the tick is outside of the window of [WithWindow] around Redis' time.
var ErrWindow = errors.New("tick: out of the window")

// pause is between the tries of a claim that waits.
const pause = 100 * time.Millisecond

// Claim reports whether the caller is the one to do the work that is due at at. False without an error means that
// another call claimed this tick or a later one.
//
// at is the nominal time, such as 12:00:00, in microseconds, not the moment at which a timer fired. If replicas compute
// different ticks for the same work, use [WithMinGap].
//
// While Redis does not answer, Claim keeps asking until the deadline of ctx, or without one for a quarter of the
// Locker's TTL, at most 1 s (with several masters a few node timeouts).
func Claim(ctx context.Context, locker *holdfast.Locker, name string, at time.Time, opts ...Option) (bool, error) {
	if ctx == nil {
		return false, invalid("nil context")
	}
	names, window, err := check(locker, name, opts)
	if err != nil {
		return false, err
	}
	if at := at.UnixMicro(); at <= 0 || at >= 1<<53 {
		return false, invalid("claim of %q at %v", name, at)
	}
	l := store.Of(locker)
	if !l.Env.Gate.Enter() {
		return false, &claimError{names.Lock, []error{holdfast.ErrClosed}}
	}
	defer l.Env.Gate.Leave()
	ctx = store.InTime(ctx)
	var cause error
	fail := func(outcome error) (bool, error) {
		e := &claimError{names.Lock, []error{outcome}}
		for _, err := range []error{cause, ctx.Err()} {
			if err != nil {
				e.reasons = append(e.reasons, err)
			}
		}
		return false, e
	}
	if ctx.Err() != nil {
		return fail(holdfast.ErrUnavailable) // before the tick can be used up
	}

	_, limit := l.Store.Patience(l.TTL)
	end := l.Env.Now().Mono + limit
	if _, bounded := ctx.Deadline(); bounded {
		end = timing.Forever // ctx ends the claim
	}
	claim := l.Store.Claim(names, at.UnixMicro(), l.TTL, window)
	open := false // an earlier try may have raised the mark
	for try := 1; ; try++ {
		c := claim(ctx)
		if l.Env.Await(ctx, end-l.Env.Now().Mono, c.Done) != 0 {
			c.Leave()
			if ctx.Err() == nil && cause == nil {
				cause = redisconn.ErrSilence
			}
			return fail(holdfast.ErrUnavailable)
		}
		if c.Err == nil {
			r, ok := protocol.ReadClaimed(c.Val)
			switch {
			case !ok:
				cause = protocol.ErrReply
			case r.Code == protocol.ClaimGranted:
				return true, nil
			case r.Code == protocol.ClaimTaken && open:
				cause = errUsedUp
			case r.Code == protocol.ClaimTaken, r.Code == protocol.ClaimOther:
				return false, nil
			default:
				cause = fmt.Errorf("%v, by the clock of redis %v off", at, at.Sub(time.UnixMicro(r.Now)).Round(time.Millisecond))
				return false, &claimError{names.Lock, []error{ErrWindow, cause}}
			}
			return false, &claimError{names.Lock, []error{holdfast.ErrUnavailable, cause}}
		}
		l.Report(names.Lock, c.Err)
		if ctx.Err() == nil || cause == nil { // the first reason says more than the end
			cause = c.Err
		}
		open = open || !redisconn.Harmless(c.Err)
		if redisconn.Permanent(c.Err) || ctx.Err() != nil {
			return fail(holdfast.ErrUnavailable)
		}
		if try < redisconn.Tries {
			continue
		}
		left := end - l.Env.Now().Mono
		switch l.Env.Await(ctx, min(pause, left), l.Env.Gate.Closing) {
		case 0:
			return fail(holdfast.ErrClosed)
		case timing.Ended:
			return fail(holdfast.ErrUnavailable)
		}
		if left <= pause {
			return fail(holdfast.ErrUnavailable)
		}
	}
}

var errUsedUp = errors.New("the tick is taken, perhaps by this call")

// Check returns a [holdfast.ErrInvalid] where [Claim] would, without asking Redis. It is for schedulers, before a tick
// is due.
func Check(locker *holdfast.Locker, name string, opts ...Option) error {
	_, _, err := check(locker, name, opts)
	return err
}

func check(locker *holdfast.Locker, name string, opts []Option) (names protocol.Names, w protocol.Window, err error) {
	if locker == nil || name == "" {
		return names, w, invalid("a claim needs a Locker and a name")
	}
	w = protocol.Window{Ahead: defaultAhead, Behind: defaultBehind}
	for _, o := range opts {
		if o == nil {
			return names, w, invalid("nil option")
		}
		if err := o.apply(&w); err != nil {
			return names, w, err
		}
	}
	if names, err = protocol.NameKeys(store.Of(locker).Prefix + name); err != nil {
		return names, w, invalid("%v", err)
	}
	return names, w, nil
}

// claimError is a claim that failed, and why.
type claimError struct {
	name    string
	reasons []error
}

func (e *claimError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tick: claim %q", e.name)
	for _, err := range e.reasons {
		b.WriteString(": " + strings.TrimPrefix(strings.TrimPrefix(err.Error(), "holdfast: "), "tick: "))
	}
	return b.String()
}

func (e *claimError) Unwrap() []error { return e.reasons }
