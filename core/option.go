package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// An Option configures a [Locker]. Every [CallOption] is one too.
type Option interface{ apply(*config) error }

// A CallOption configures one acquisition or, given to [New] or to an adapter, all of them. The call's options override
// the adapter's, and those override the Locker's; the hooks of all traces are called.
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

	defaultHandovers  = maxHandovers
	maxHandovers      = 250 // with many more reserved per tenure, tokens could run ahead of the clock
	defaultHandWithin = 100 * time.Millisecond

	maxReentryID = 128
)

type config struct {
	prefix   string
	ttl      time.Duration
	wait     time.Duration // < 0: until the context ends
	waitSet  bool          // by an option of the call itself
	noRenew  bool
	maxHold  time.Duration // 0: none
	progress time.Duration // 0: none
	label    string

	limit     int           // how many may hold the lock together; protocol.NoLimit with WithShared
	share     *single.Share // whose turn the call takes; nil for none
	reentryID string
	reentrant bool

	background bool // releases
	gathers    bool // a call of DoAll, whose function has not begun: progress need not be reported yet

	acks       int // replicas to wait for; 0: none
	acksWithin time.Duration

	traces  traces
	pollMin time.Duration
	pollMax time.Duration

	handovers  int // within the process, in a row
	handWithin time.Duration
}

func defaults() config {
	return config{
		ttl: defaultTTL, wait: -1, limit: 1, pollMin: defaultPollMin, pollMax: defaultPollMax,
		handovers: defaultHandovers, handWithin: defaultHandWithin,
	}
}

// check looks at the fields together; each by itself was checked by its option.
func (c *config) check(l *Locker) error {
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
	if err := l.store.Check(c.want(1)); err != nil || c.acks == 0 {
		return err
	}
	if held := c.ttl - timing.Margin(c.ttl); c.acksWithin >= held {
		return invalid("WithReplicaAcks may wait for %v, but with a TTL of %v the lock is lost after %v", c.acksWithin, c.ttl, held)
	}
	switch client := l.Client().(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		return nil
	default:
		return invalid("WithReplicaAcks needs a *redis.Client, *redis.ClusterClient or *redis.Ring, not a %T", client)
	}
}

// want returns what an owner asks for that reserves block tokens.
func (c *config) want(block int) single.Want {
	return single.Want{TTL: c.ttl, Label: c.label, ReentryID: c.reentryID, Block: block, Limit: c.limit, Acks: c.acks, Share: c.share}
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type callOption func(*config) error

func (o callOption) apply(c *config) error { return o(c) }
func (o callOption) call()                 {}

// WithPrefix puts s in front of every lock's key, its companions and channels, in the adapters too: with
// WithPrefix("shop:"), the lock "order:42" is the Redis key "shop:order:42". Other keys of packages asynqlock and
// cronlock begin with "asynqlock:" and "cronlock:", and have the prefix behind that. Programs exclude each other only
// if they use the same prefix. Default: none. New refuses a prefix that no valid key can begin with.
func WithPrefix(s string) Option {
	return option(func(c *config) error { c.prefix = s; return nil })
}

// WithPolling sets how long a waiter that Redis does not notify pauses between two looks: a random time that grows from
// min to max, and is never longer than 2 s. Default: 10 ms to 250 ms. A shorter pause finds a free lock sooner and
// costs more commands.
//
// Waiters poll on a redis.Ring, on a Redis that refuses SUBSCRIBE, or PUBLISH in a script, and during an outage. While
// a program without holdfast has the lock, the first in line polls, or notices the release within 2 s.
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
// release passes the lock to the next of them without a command: at most n times in a row, and only until d after the
// process got the lock. Then other processes have their turn. Default: 250 times, the maximum, and 100 ms. n = 0
// turns it off: each call waits in line in Redis on its own, and readers do not join, see [WithShared].
//
// The tokens of such calls were reserved when Redis granted the lock. If Redis forgets the key within d and another
// process acquires it, that process has the larger token, and a fence refuses what later calls write until they learn
// of the loss, at the next renewal.
func WithLocalHandover(n int, d time.Duration) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxHandovers || d < 0 {
			return invalid("WithLocalHandover(%d, %v): want 0 to %d times and no negative duration", n, d, maxHandovers)
		}
		c.handovers, c.handWithin = n, d
		return nil
	})
}

// WithTTL sets the length of the lease: how long Redis keeps the lock for a holder that it no longer hears from. 100 ms
// to 24 h, in whole milliseconds. Default: 15 s. If it is too short, a slow network or a pause of the process loses
// locks; if it is too long, a crashed holder blocks the others for that time.
//
// A quarter of the TTL, at most 1 s, is the patience of a call with a Redis that does not answer.
func WithTTL(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d < minTTL || d > maxTTL {
			return invalid("WithTTL(%v): want %v to %v", d, minTTL, maxTTL)
		}
		c.ttl = d.Truncate(time.Millisecond)
		return nil
	})
}

// WithWait bounds how long Acquire, Do and DoAll wait for another holder, from when they learn that the lock is held.
// WithWait(0) does not wait, like TryAcquire. Default: until the context ends.
//
// In an outage of Redis a call fails with [ErrUnavailable] after max, or after the patience of [WithTTL] if that is
// longer, and at the latest after a whole TTL.
func WithWait(max time.Duration) CallOption {
	return callOption(func(c *config) error {
		if max < 0 {
			return invalid("WithWait(%v): negative", max)
		}
		c.wait, c.waitSet = max, true
		return nil
	})
}

// WithoutRenewal turns renewal off: the lock ends after its TTL unless [Lock.Extend] is called. Default: the lock is
// renewed until it is released.
func WithoutRenewal() CallOption {
	return callOption(func(c *config) error { c.noRenew = true; return nil })
}

// WithMaxHold ends a hold d after the acquisition: the lock counts as lost, its context is cancelled, and its lease
// expires at about that time. d must not be below the TTL. Default: no bound, and a hung handler keeps its key as
// long as its process lives.
func WithMaxHold(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d <= 0 {
			return invalid("WithMaxHold(%v): want more than 0", d)
		}
		c.maxHold = d
		return nil
	})
}

// WithProgress ends a hold d after the last call of [Progress] under it: the lock counts as lost, with [ErrNoProgress],
// and is no longer renewed, so that it is free at most a TTL later. The acquisition is the first report, with DoAll the
// call of fn. Default: no bound. If d is too short, slow work loses its lock. Report from the work itself: a goroutine
// beside it goes on when the work hangs.
func WithProgress(d time.Duration) CallOption {
	return callOption(func(c *config) error {
		if d <= 0 {
			return invalid("WithProgress(%v): want more than 0", d)
		}
		c.progress = d
		return nil
	})
}

// WithReentrancy lets a call acquire a lock that its context already holds. The call returns at once with another
// handle to the same hold: a Lock with the same token. Its other options have no effect. The hold ends when its last
// handle is released, so a handle that is dropped without a Release keeps the lock. Default: such a call fails with
// [ErrSelfDeadlock].
func WithReentrancy() CallOption {
	return callOption(func(c *config) error { c.reentrant = true; return nil })
}

// WithReentryID lets all calls that name the same id hold the lock together, wherever they run: say a job that holds
// a lock, and a service that it calls with the id. They share one token. The lock is free when the last of them has
// released it; a call that crashed counts until its own lease expires.
//
// New calls enter past waiters as long as the first holder is in, the call that got the lock when it was free; later
// ones stand in line. Let the job be the first holder, and let it hold the lock for as long as it calls others.
// Otherwise a call can wait for itself: see core/limits.md.
//
// id has 1 to 128 bytes. Anyone who knows it can enter the lock: use a random one for each job. New and the adapters
// refuse this option. Default: none.
func WithReentryID(id string) CallOption {
	return callOption(func(c *config) error {
		if id == "" || len(id) > maxReentryID {
			return invalid("WithReentryID(%.80q): want 1 to %d bytes", id, maxReentryID)
		}
		c.reentryID = id
		return nil
	})
}

// WithLabel names the holder, for humans: [Locker.Inspect] and [HeldError] show the label, which is stored with the
// key. It has at most 64 printable bytes. Default: none.
func WithLabel(s string) CallOption {
	return callOption(func(c *config) error {
		if !protocol.ValidLabel(s) {
			return invalid("WithLabel(%.80q): want at most %d printable bytes", s, protocol.MaxLabel)
		}
		c.label = s
		return nil
	})
}

// WithTrace adds hooks, for logs and metrics. Default: none.
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
