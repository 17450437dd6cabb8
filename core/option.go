package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// Option configures a [Locker]. Every [CallOption] and [ClaimOption] is one too.
type Option interface{ apply(*config) error }

// CallOption configures one acquisition. Given to [New] or to an adapter it configures all of them; New and the
// adapters refuse [WithReentryID]. The call's options win over the adapter's, and those over the Locker's; the hooks of all
// traces are called.
type CallOption interface {
	Option
	call()
}

// ClaimOption configures one [Locker.Claim], or, given to [New] or to an adapter, all of them.
type ClaimOption interface {
	Option
	claim()
}

const (
	minTTL     = 100 * time.Millisecond
	maxTTL     = 24 * time.Hour
	defaultTTL = 15 * time.Second

	defaultPollMin = 10 * time.Millisecond
	defaultPollMax = 250 * time.Millisecond

	defaultHandovers  = maxHandovers
	maxHandovers      = 250 // with many more reserved per tenure, tokens could run ahead of the clock
	defaultHandWithin = 100 * time.Millisecond

	maxReentryID = 128
)

type config struct {
	prefix  string
	ttl     time.Duration
	wait    time.Duration // < 0: until the context ends
	waitSet bool          // by an option of the call itself
	noRenew bool
	maxHold time.Duration // 0: none
	label   string

	limit     int // how many may hold the lock together; protocol.NoLimit with WithShared
	reentrant bool
	reentryID string

	background bool // releases
	leads      bool // holds for as long as it can

	acks       int // replicas to wait for; 0: none
	acksWithin time.Duration

	traces  traces
	pollMin time.Duration
	pollMax time.Duration

	// Of NewRedLock.
	quarantine    time.Duration
	quarantineSet bool
	nodeTimeout   time.Duration

	handovers  int // within the process, in a row
	handWithin time.Duration

	// Of Claim.
	gap     time.Duration
	behind  time.Duration
	ahead   time.Duration
	waiting time.Duration // as wait, where WithWait was given at all; else 0
}

func defaults() config {
	return config{
		ttl: defaultTTL, wait: -1, limit: 1, pollMin: defaultPollMin, pollMax: defaultPollMax,
		handovers: defaultHandovers, handWithin: defaultHandWithin,
		behind: defaultBehind, ahead: defaultAhead,
	}
}

// check looks at the fields together; each by itself was checked by its option.
func (c *config) check(s store) error {
	if c.maxHold > 0 && c.noRenew {
		return invalid("WithMaxHold bounds renewal, which WithoutRenewal turned off")
	}
	if c.maxHold > 0 && c.maxHold < c.ttl {
		return invalid("WithMaxHold(%v) is below the lease of %v", c.maxHold, c.ttl)
	}
	if c.limit > 1 && c.reentryID != "" {
		return invalid("WithReentryID shares a lock that has one holder otherwise: WithLimit and WithShared contradict it")
	}
	if _, err := nameKeys(c.prefix + "k"); err != nil {
		return invalid("WithPrefix(%.40q): no key can begin so: %s", c.prefix, bare(err))
	}
	return s.check(c)
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type callOption func(*config) error

func (o callOption) apply(c *config) error { return o(c) }
func (o callOption) call()                 {}

type claimOption func(*config) error

func (o claimOption) apply(c *config) error { return o(c) }
func (o claimOption) claim()                {}

// anyOption is for acquisitions and for claims. What makes one returns both interfaces without a name for the two.
type anyOption func(*config) error

func (o anyOption) apply(c *config) error { return o(c) }
func (o anyOption) call()                 {}
func (o anyOption) claim()                {}

// WithPrefix puts s before every lock's key and what belongs to it, "shop:" say; only keys "asynqlock:..." and "cronlock:..."
// of those packages come without it in front. Default: none, so that the key in Redis is the one you name, as other lock
// libraries have it. Programs exclude each other only under the same prefix. New refuses a prefix that no key can begin with:
// see "Keys, commands and ACL" in the description of the package.
func WithPrefix(s string) Option {
	return option(func(c *config) error { c.prefix = s; return nil })
}

// WithPolling sets how long a waiter that cannot be told of a grant pauses between two looks: a random time that
// grows from min to max, at most 2 s. Default 10 ms to 250 ms. Shorter finds a free lock sooner and costs more
// commands. It is for Redis servers where SUBSCRIBE, or PUBLISH in a script, is refused, for a redis.Ring, for outages,
// and for a lock whose holder does not use holdfast, where Redis can tell; else its release is noticed within 2 s.
func WithPolling(min, max time.Duration) Option {
	return option(func(c *config) error {
		if min < time.Millisecond || max < min {
			return invalid("WithPolling(%v, %v): want 1ms <= min <= max", min, max)
		}
		c.pollMin, c.pollMax = min, max
		return nil
	})
}

// plain tells whether the lock may be taken over from another call, which only knows of the lease.
func (c *config) plain() bool { return !c.noRenew && c.reentryID == "" && c.acks == 0 }

// WithLocalHandover bounds how calls of one Locker pass a lock on among themselves. They stand in line within the process,
// and a release gives the lock to the next of them without asking Redis: at most n times in a row, and no more when the lock
// has been in the process for d. Then other processes have their turn, if any wait. Readers, too, join a reader for no longer
// than d, see [WithShared]. Default 250 times, which is the most, and 100 ms. n = 0 turns it off: then each call waits in line
// in Redis by itself, or, with [NewRedLock], goes there when it is the first of its process.
//
// A call that takes the lock over in this way has a token that was reserved when Redis granted the lock, and Redis is not
// asked. Where Redis lost the key within d (a FLUSHALL, a restart, a DEL) and another process has acquired it since, that
// process acquired it before this call did, and yet has the larger token: the call learns of its loss at the next renewal, a
// third of a lease later at most, and a fence refuses what it writes before.
func WithLocalHandover(n int, d time.Duration) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxHandovers || d < 0 {
			return invalid("WithLocalHandover(%d, %v): want 0 to %d times and no negative duration", n, d, maxHandovers)
		}
		c.handovers, c.handWithin = n, d
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

// WithWait bounds how long Acquire and Do wait for another holder, beside the context. The time counts from when the call
// learns that somebody has the lock: at the first answer of Redis if the holder is in another process, at once if it is in
// this one. Default: until the context ends. 0 does not wait at all, like TryAcquire. It bounds the waiting for others: a
// Redis that does not answer, or refuses connections, is given a quarter of the TTL, at most 1 s, if that is more. For a
// [Locker.Claim], which waits for nobody, it is how long Redis is asked.
func WithWait(max time.Duration) interface {
	CallOption
	ClaimOption
} {
	return anyOption(func(c *config) error {
		if max < 0 {
			return invalid("WithWait(%v): negative", max)
		}
		c.wait, c.waitSet, c.waiting = max, true, max
		return nil
	})
}

// WithoutRenewal leaves the lease as it is: the lock ends after its TTL unless [Lock.Extend] is called.
// Default: renewed until released.
func WithoutRenewal() CallOption {
	return callOption(func(c *config) error { c.noRenew = true; return nil })
}

// WithMaxHold ends a hold after d, counted from the acquisition, however healthy it is: renewal stops, the lock is lost, its
// context is cancelled, and its lease ends about then. Default: no bound, so that a hung handler owns its key for as long as
// its process lives. d must not be below the TTL.
func WithMaxHold(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d <= 0 {
			return invalid("WithMaxHold(%v): want more than 0", d)
		}
		c.maxHold = d
		return nil
	})
}

// WithReentrancy lets a call whose context already holds the lock have it again: it gets another Lock at once, one more
// handle to the same hold, with the same token; its other options do not count. The hold ends when the last handle is
// released; a handle that is never released keeps it, even one that was dropped. Default: such a call fails with
// [ErrSelfDeadlock], as it would wait for itself. It is the context that counts, not the goroutine.
func WithReentrancy() CallOption {
	return callOption(func(c *config) error { c.reentrant = true; return nil })
}

// WithReentryID lets calls that name the same id hold the lock together, wherever they run: a job that holds a lock, say,
// and a service that it calls and tells the id. All have the same token, and the lock is free when the last of them has
// released it. A call that dies counts no longer than its own lease. Anyone
// who knows the id can enter the lock: use a random one per job. It has 1 to 128 bytes. New and the adapters
// refuse it: all of their calls would hold their locks together. Default: none.
func WithReentryID(id string) CallOption {
	return callOption(func(c *config) error {
		if id == "" || len(id) > maxReentryID {
			return invalid("WithReentryID(%.80q): want 1 to %d bytes", id, maxReentryID)
		}
		c.reentryID = id
		return nil
	})
}

// WithLabel names the holder, for people: it is stored with the key, seen by [Locker.Inspect] and
// in a [HeldError]. At most 64 bytes, printable. Default: none. Given to New it names the replica, in all of its locks.
func WithLabel(s string) CallOption {
	return callOption(func(c *config) error {
		if !protocol.ValidLabel(s) {
			return invalid("WithLabel(%.80q): want at most %d printable bytes", s, protocol.MaxLabel)
		}
		c.label = s
		return nil
	})
}

// WithTrace adds hooks. Default: none, which costs nothing.
func WithTrace(t *Trace) interface {
	CallOption
	ClaimOption
} {
	return anyOption(func(c *config) error {
		if t == nil {
			return invalid("WithTrace(nil)")
		}
		// A fresh array: c may be a copy of a configuration that others use.
		c.traces = append(c.traces[:len(c.traces):len(c.traces)], t)
		return nil
	})
}
