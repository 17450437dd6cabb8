package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// An Option configures a [Locker]. Every [CallOption] and [ClaimOption] is one too.
type Option interface{ apply(*config) error }

// A CallOption configures one acquisition or, given to [New] or to an adapter, all of them. The call's options override
// the adapter's, and those override the Locker's, but the hooks of all traces are called. New and the adapters refuse
// [WithReentryID].
type CallOption interface {
	Option
	call()
}

// A ClaimOption configures one [Locker.Claim] or, given to [New] or to an adapter, all of them.
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

// WithPrefix puts s in front of every lock's key: with WithPrefix("shop:"), the lock "order:42" is the Redis key
// "shop:order:42", in the adapters too. Companion keys and channels include the prefix: see "Keys, commands and ACL" in
// the package's description. The keys that packages asynqlock and cronlock write in addition to locks begin with
// "asynqlock:" and "cronlock:", and have the prefix behind that. Programs exclude each other only if they use the same
// prefix. Default: none, so that the Redis key is the one you name, as with other lock libraries.
//
// New refuses a prefix that no valid key can begin with.
func WithPrefix(s string) Option {
	return option(func(c *config) error { c.prefix = s; return nil })
}

// WithPolling sets how long a waiter that cannot be notified of a grant pauses between two looks at Redis: a random time
// that grows from min to max, and is never longer than 2 s. Default: 10 ms to 250 ms. A shorter pause finds a free lock
// sooner and costs more commands.
//
// Waiters poll in three cases: on a redis.Ring, on a Redis that refuses SUBSCRIBE or refuses PUBLISH in a script, and
// during an outage. While a program without holdfast holds the lock, the first waiter in line polls too if Redis can tell
// that such a program holds it; otherwise it notices the release within 2 s.
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

// WithLocalHandover bounds how calls of one Locker hand a lock to each other. They queue within the process, and a
// release passes the lock to the next of them without asking Redis: at most n times in a row, and only until d after the
// process got the lock. Then waiters in other processes have their turn, if there are any. Readers join a reader of their
// process for d at most, see [WithShared]. Default: 250 times, the maximum, and 100 ms.
//
// n = 0 turns it off: each call waits in line in Redis on its own, and readers do not join. With [NewRedLock] only one
// call per process and key waits in line even then, and the others queue behind it.
//
// A call that gets the lock in this way has a token that was reserved when Redis granted the lock. If Redis forgot the
// key within d (by FLUSHALL, a restart, a DEL) and another process has acquired it since, that process has the larger
// token although it acquired the lock earlier. The call learns of its loss at its next renewal, at most a third of a
// lease later. A fence refuses what it writes before that.
func WithLocalHandover(n int, d time.Duration) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxHandovers || d < 0 {
			return invalid("WithLocalHandover(%d, %v): want 0 to %d times and no negative duration", n, d, maxHandovers)
		}
		c.handovers, c.handWithin = n, d
		return nil
	})
}

// WithTTL sets the length of the lease: how long Redis keeps the lock for a holder that it no longer hears from. It is
// 100 ms to 24 h, in whole milliseconds. Default: 15 s. If it is too short, a slow network or a pause of the process
// loses locks; if it is too long, a crashed holder blocks the others for that time.
func WithTTL(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d < minTTL || d > maxTTL {
			return invalid("WithTTL(%v): want %v to %v", d, minTTL, maxTTL)
		}
		c.ttl = d.Truncate(time.Millisecond)
		return nil
	})
}

// WithWait bounds how long Acquire and Do wait for another holder, in addition to their context. The time counts from
// when the call learns that the lock is held: from Redis' first answer if the holder is in another process, at once if it
// is in this one. WithWait(0) does not wait at all, like TryAcquire. Default: until the context ends.
//
// max bounds the wait for others, not the time that Redis is given to answer. If Redis does not answer or refuses
// connections, a call fails with [ErrUnavailable] within max, or within a quarter of the TTL (at most 1 s) if that is
// longer, and at the latest after an outage of a whole TTL.
//
// For [Locker.Claim], which never waits for another holder, max is how long it keeps asking Redis; see there for the
// default.
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

// WithoutRenewal turns renewal off: the lock ends after its TTL unless [Lock.Extend] is called. Default: the lock is
// renewed until it is released.
func WithoutRenewal() CallOption {
	return callOption(func(c *config) error { c.noRenew = true; return nil })
}

// WithMaxHold ends a hold d after the acquisition, however healthy it is: renewal stops, the lock counts as lost, its
// context is cancelled, and its lease expires at about that time. d must not be below the TTL. Default: no bound, so that
// a hung handler keeps its key for as long as its process lives.
func WithMaxHold(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d <= 0 {
			return invalid("WithMaxHold(%v): want more than 0", d)
		}
		c.maxHold = d
		return nil
	})
}

// WithReentrancy lets a call acquire a lock that its context already holds. The call returns at once with another handle
// to the same hold: a Lock with the same token. The call's other options have no effect. The hold ends when its last
// handle is released, so a handle that is never released keeps the lock, even one that was dropped. Default: such a call
// fails with [ErrSelfDeadlock], since it would wait for itself.
//
// What counts is the context, not the goroutine.
func WithReentrancy() CallOption {
	return callOption(func(c *config) error { c.reentrant = true; return nil })
}

// WithReentryID lets all calls that name the same id hold the lock together, wherever they run: for example a job that holds
// a lock, and a service that the job calls and passes the id to. A call whose own context already holds the lock with that id
// enters too. They share one token. The lock is free when the last of them has released it; a call that crashed counts until
// its own lease expires.
//
// id has 1 to 128 bytes. Anyone who knows it can enter the lock: use a random one for each job. New and the adapters refuse
// this option, since all of their calls would hold their locks together. Default: none.
func WithReentryID(id string) CallOption {
	return callOption(func(c *config) error {
		if id == "" || len(id) > maxReentryID {
			return invalid("WithReentryID(%.80q): want 1 to %d bytes", id, maxReentryID)
		}
		c.reentryID = id
		return nil
	})
}

// WithLabel names the holder, for humans: the label is stored with the key and appears in [Locker.Inspect] and
// [HeldError]. Given to New, it names the replica in all of its locks. It has at most 64 printable bytes. Default: none.
func WithLabel(s string) CallOption {
	return callOption(func(c *config) error {
		if !protocol.ValidLabel(s) {
			return invalid("WithLabel(%.80q): want at most %d printable bytes", s, protocol.MaxLabel)
		}
		c.label = s
		return nil
	})
}

// WithTrace adds hooks, for logs and metrics. Default: none, which costs nothing.
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
