package core

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Option configures a [Locker]. Every [CallOption] is one too.
type Option interface{ apply(*config) error }

// CallOption configures one acquisition, or, given to [New] or to an adapter, all of them. The call's
// options win over the adapter's, and those over the Locker's; traces add up.
type CallOption interface {
	Option
	call()
}

const (
	minTTL     = 100 * time.Millisecond
	maxTTL     = 24 * time.Hour
	defaultTTL = 15 * time.Second

	defaultPollMin = 10 * time.Millisecond
	defaultPollMax = 250 * time.Millisecond

	maxLabel = 64
)

type config struct {
	prefix  string
	ttl     time.Duration
	wait    time.Duration // < 0: until the context ends
	waitSet bool          // by an option of the call itself
	noRenew bool
	maxHold time.Duration // 0: none
	label   string

	reentrant bool

	traces  traces
	pollMin time.Duration
	pollMax time.Duration

	// Of Claim.
	gap    time.Duration
	behind time.Duration
	ahead  time.Duration
	claims bool // an option for Claim was given in the call itself
}

func defaults() config {
	return config{
		ttl: defaultTTL, wait: -1, pollMin: defaultPollMin, pollMax: defaultPollMax,
		behind: defaultBehind, ahead: defaultAhead,
	}
}

// check looks at the fields together; each by itself was checked by its option.
func (c *config) check() error {
	if c.maxHold > 0 && c.noRenew {
		return invalid("WithMaxHold bounds renewal, which WithoutRenewal turned off")
	}
	if c.maxHold > 0 && c.maxHold < c.ttl {
		return invalid("WithMaxHold(%v) is below the lease of %v", c.maxHold, c.ttl)
	}
	return nil
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type callOption func(*config) error

func (o callOption) apply(c *config) error { return o(c) }
func (o callOption) call()                 {}

// WithPrefix puts s before every key, "shop:" say. Default: none, so that the key in Redis is the one you
// name, as other lock libraries have it. Programs exclude each other only under the same prefix.
func WithPrefix(s string) Option {
	return option(func(c *config) error { c.prefix = s; return nil })
}

// WithPolling sets how long a waiter pauses between two looks: a random time that grows from min to max.
// Default 10 ms to 250 ms. Shorter finds a free lock sooner and costs more commands.
func WithPolling(min, max time.Duration) Option {
	return option(func(c *config) error {
		if min < time.Millisecond || max < min {
			return invalid("WithPolling(%v, %v): want 1ms <= min <= max", min, max)
		}
		c.pollMin, c.pollMax = min, max
		return nil
	})
}

// WithTTL sets the lease: how long Redis keeps the lock for a holder that it no longer hears from. From
// 100 ms to 24 h in whole milliseconds, default 15 s. Too short and a slow network or a pause of the
// process loses locks; too long and a crash blocks the others for that time.
func WithTTL(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d < minTTL || d > maxTTL {
			return invalid("WithTTL(%v): want %v to %v", d, minTTL, maxTTL)
		}
		c.ttl = d.Truncate(time.Millisecond)
		return nil
	})
}

// WithWait bounds how long Acquire and Do wait for another holder, beside the context, counted from the first
// answer that tells of one. Default: until the context ends. 0 does not wait at all, like TryAcquire. It bounds the waiting for others: a Redis that does
// not answer is given a quarter of the TTL, at most 1 s, beyond it.
func WithWait(max time.Duration) CallOption {
	return callOption(func(c *config) error {
		if max < 0 {
			return invalid("WithWait(%v): negative", max)
		}
		c.wait, c.waitSet = max, true
		return nil
	})
}

// WithoutRenewal leaves the lease as it is: the lock ends after its TTL unless [Lock.Extend] is called.
// Default: renewed until released.
func WithoutRenewal() CallOption {
	return callOption(func(c *config) error { c.noRenew = true; return nil })
}

// WithMaxHold ends a hold after d, counted from the acquisition, however healthy it is: renewal stops, the
// lock is lost, its context is cancelled. Default: no bound, so that a hung handler owns its key for as
// long as its process lives. d must not be below the TTL.
func WithMaxHold(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d <= 0 {
			return invalid("WithMaxHold(%v): want more than 0", d)
		}
		c.maxHold = d
		return nil
	})
}

// WithReentrancy lets a call whose context already holds the lock have it again: it gets one more handle to the
// same hold at once, with the same token and whatever its other options say. The hold ends when the last handle
// is released; one that never is keeps it, also when it is forgotten. Default: such a call fails with
// [ErrSelfDeadlock], as it would wait for itself. It is the context that counts, not the goroutine.
func WithReentrancy() CallOption {
	return callOption(func(c *config) error { c.reentrant = true; return nil })
}

// WithLabel says who holds the lock, for people: it is stored with the key, seen by [Locker.Inspect] and
// in a [HeldError]. At most 64 bytes, printable. Default: none.
func WithLabel(s string) CallOption {
	return callOption(func(c *config) error {
		if !validLabel(s) {
			return invalid("WithLabel(%.80q): want at most %d printable bytes", s, maxLabel)
		}
		c.label = s
		return nil
	})
}

// WithTrace adds hooks. Default: none, which costs nothing.
func WithTrace(t *Trace) CallOption {
	return callOption(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		// A fresh array: c may be a copy of a configuration that others use.
		c.traces = append(c.traces[:len(c.traces):len(c.traces)], t)
		return nil
	})
}

func validLabel(s string) bool {
	return len(s) <= maxLabel && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
