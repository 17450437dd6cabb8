package cronlock

import (
	"fmt"
	"slices"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// An Option configures a [Guard] or one of its jobs. A job's options override the Guard's; those within WithLock and
// WithClaim do so one by one. An Option only records its argument; [New], or the method that makes the job, checks it.
type Option interface{ apply(*config) }

const (
	defaultLateness = time.Minute
	longestLease    = 15 * time.Second
	shortestLease   = 500 * time.Millisecond
)

type config struct {
	mistakes
	lock     []holdfast.CallOption
	claim    []holdfast.ClaimOption
	busy     Policy
	lateness time.Duration // 0: half of the period, at most a minute
	failOpen bool
	traces   []*Trace
	ahead    time.Duration // how far the clock of this replica is ahead of the true time, in tests
}

// mistakes are those in the arguments of New, or of a method that makes a job. They are collected to be reported together.
type mistakes []string

func (m *mistakes) refuse(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// err returns one error that names all mistakes, or nil.
func (m mistakes) err(of string) error {
	if len(m) == 0 {
		return nil
	}
	return invalid("%s: %s", of, strings.Join(m, "; "))
}

// set applies opts, which check what a Locker does not know.
func (c *config) set(opts []Option) {
	for _, o := range opts {
		if o == nil {
			c.refuse("a nil option")
			continue
		}
		o.apply(c)
	}
}

// clone returns a copy that shares no room for appended options with c.
func (c config) clone() config {
	c.lock, c.claim, c.traces = slices.Clip(c.lock), slices.Clip(c.claim), slices.Clip(c.traces)
	return c
}

// lockOptions returns the options of an acquisition. Those of WithLock can override lease, but not wait.
func (c *config) lockOptions(lease, wait time.Duration) []holdfast.CallOption {
	opts := append([]holdfast.CallOption{holdfast.WithTTL(lease)}, c.lock...)
	return append(opts, holdfast.WithWait(wait))
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// Policy says what happens to a tick whose key is busy, usually because an earlier run is still going on some replica. It
// is [Skip], [Wait] or [Allow].
type Policy struct {
	wait  time.Duration
	exact bool // does not wait for a dead holder's lease either
	allow bool
}

// Skip does not run a tick whose key stays busy. It waits only for what is left of the holder's lease, since the holder may
// have died, and not beyond the bound of [WithLateness]. If the lock becomes free in that time, the tick runs, late. The
// lease is half of the period, at most 15 s, unless [WithLock] sets another TTL.
func Skip() Policy { return Policy{} }

// Wait waits for the lock for max, which must not be negative, or for what is left of the holder's lease, whichever is
// longer, but not beyond the bound of [WithLateness]. If the lock is still held then, the tick does not run. Wait(0) does
// not wait at all, not even for the lease of a dead holder.
func Wait(max time.Duration) Policy { return Policy{wait: max, exact: max == 0} }

// Allow lets runs overlap. There is no lock, and so no fencing token and no loss. Each tick still runs only once.
func Allow() Policy { return Policy{allow: true} }

// WithBusy sets what happens to a tick whose key is busy. Default: [Skip].
func WithBusy(p Policy) Option {
	return option(func(c *config) {
		if c.busy = p; p.wait < 0 {
			c.refuse("WithBusy(Wait(%v)): negative", p.wait)
		}
	})
}

// WithLateness sets how long after its tick a job can still begin, if Redis did not answer before or the process was
// paused. Default: half of the period (the time from one tick to the next), at most 1 min. d must be more than 0.
//
// A tick that is more than d late does not run on this replica, nor on any other if this one has claimed it. The replica's
// own clock measures the lateness. If that clock is ahead, the time that the replica waits for the tick does not count. If
// d is longer than the period, the latest tick of an outage can be the only one that runs after it. A d above an hour also
// needs a wider window: see [WithClaim].
func WithLateness(d time.Duration) Option {
	return option(func(c *config) {
		if d <= 0 {
			c.refuse("WithLateness(%v): want more than 0", d)
		}
		c.lateness = d
	})
}

// WithClaim passes options to [holdfast.Locker.Claim], which claims a tick. [holdfast.WithTickWindow] sets how far a tick
// can be behind the clock of Redis and ahead of it. Default: 1 h and 10 s. [holdfast.WithWait] has no effect here: see
// [WithLateness].
//
// A replica that is ahead by up to 10 s, or by up to the window if that is wider, waits until the tick has come by the
// clock of Redis. One that is further ahead, or behind by more than the window, runs nothing. With several masters no
// replica waits.
func WithClaim(opts ...holdfast.ClaimOption) Option {
	return option(func(c *config) { c.claim = append(c.claim, opts...) })
}

// WithLock passes options to the acquisition of the lock, such as its TTL, a label or a bound on the hold. They override
// the Locker's. They also override the TTL that the Guard chooses in place of the Locker's: half of the period, from 500 ms
// to 15 s. [holdfast.WithWait] has no effect here: see [Wait].
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithFailOpen runs a job without the lock and the claim while Redis is unavailable. It gives up mutual exclusion exactly
// when the system is in trouble: every replica that gets no answer from Redis until the bound of [WithLateness] runs the
// job. If Redis refuses a claim for good, by an ACL for example, the job runs at once. In such a run [holdfast.Held] finds
// no lock, sqlfence fails with ErrNoToken, and gormfence lets writes pass unless it has WithLockRequired. WithFailOpen does
// not apply to [Guard.RunNow]. Default: the tick does not run.
func WithFailOpen() Option {
	return option(func(c *config) { c.failOpen = true })
}

// WithTrace adds hooks, for logs and metrics. Hooks of the Guard and hooks of the job are all called. Default: slog logs
// what the hooks Late, Lost, Failed, Unlocked and Differs report. Setting a hook, for the Guard or for the job, replaces
// the default logging of what that hook reports.
func WithTrace(t *Trace) Option {
	return option(func(c *config) {
		if c.traces = append(c.traces, t); t == nil {
			c.refuse("WithTrace(nil)")
		}
	})
}
