package cronlock

import (
	"fmt"
	"slices"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// Option configures a [Guard], or one of its jobs: those of the job win.
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
	ahead    time.Duration // what the clock of this replica is ahead of the true time, in tests
}

// mistakes are those in the arguments of a Guard, or of one of its jobs. Options only record, and are judged all at once.
type mistakes []string

func (m *mistakes) refuse(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// err names all of them, in one error.
func (m mistakes) err(of string) error {
	if len(m) == 0 {
		return nil
	}
	return invalid("%s: %s", of, strings.Join(m, "; "))
}

// set records opts, and has those judged that a Locker does not know.
func (c *config) set(opts []Option) {
	for _, o := range opts {
		if o == nil {
			c.refuse("a nil option")
			continue
		}
		o.apply(c)
	}
}

// clone shares no array with c.
func (c config) clone() config {
	c.lock, c.claim, c.traces = slices.Clip(c.lock), slices.Clip(c.claim), slices.Clip(c.traces)
	return c
}

// lockOptions are those of an acquisition.
func (c *config) lockOptions(lease, wait time.Duration) []holdfast.CallOption {
	opts := append([]holdfast.CallOption{holdfast.WithTTL(lease)}, c.lock...)
	return append(opts, holdfast.WithWait(wait))
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// Policy says what becomes of a tick whose key is busy, as the run of an earlier one goes on, on whichever replica: [Skip],
// [Wait] or [Allow].
type Policy struct {
	wait  time.Duration
	exact bool // not for a dead holder's lease either
	allow bool
}

// Skip leaves the tick out if the earlier run still has its lock once what was left of its lease is over: until then the tick
// waits, within the bound of [WithLateness], as the process of that run may have died. If that run ends meanwhile, the tick
// runs, late. The lease is half of the period, at most 15 s, unless [WithLock] has another TTL.
func Skip() Policy { return Policy{} }

// Wait waits for the run to end, for max or what is left of its lease, whichever is longer, but not beyond the bound of
// [WithLateness], and then leaves the tick out. Wait(0) does not wait at all, not even for a dead holder's lease.
func Wait(max time.Duration) Policy { return Policy{wait: max, exact: max == 0} }

// Allow lets runs overlap. There is no lock then, and so no token and no loss: only each tick runs once.
func Allow() Policy { return Policy{allow: true} }

// WithBusy sets what becomes of a tick whose key is busy. Default: [Skip].
func WithBusy(p Policy) Option {
	return option(func(c *config) {
		if c.busy = p; p.wait < 0 {
			c.refuse("WithBusy(Wait(%v)): negative", p.wait)
		}
	})
}

// WithLateness bounds how long after its tick a job may still begin: when Redis did not answer before, or the process was
// paused. A tick that is later is left out, on this replica, or on all if this one had claimed it. The replica's own clock
// tells how late it is, and what a clock that is ahead waits for its tick does not count. If the bound is longer than the
// period, the time from a tick to the next, only the latest tick of an outage may run after it. A bound above an hour needs a
// wider window of [WithClaim] too. Default: half of the period, at most 1 min.
func WithLateness(d time.Duration) Option {
	return option(func(c *config) {
		if d <= 0 {
			c.refuse("WithLateness(%v): want more than 0", d)
		}
		c.lateness = d
	})
}

// WithClaim passes options on to [holdfast.Locker.Claim], which claims a tick: [holdfast.WithTickWindow] says how far a tick
// may be behind the clock of Redis and ahead of it; a replica whose clock is off by more runs nothing. What
// [holdfast.WithWait] says does not count: see [WithLateness]. Default: 1 h and 10 s.
func WithClaim(opts ...holdfast.ClaimOption) Option {
	return option(func(c *config) { c.claim = append(c.claim, opts...) })
}

// WithLock passes options on to the lock: a label, the TTL, a bound to the hold. They win over the TTL that the Guard
// chooses, half of the time to the next tick, from 500 ms to 15 s, and that over the Locker's. What holdfast.WithWait says
// does not count: see [Wait].
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.lock = append(c.lock, opts...) })
}

// WithFailOpen runs a job without lock and claim when Redis has not answered until the bound of [WithLateness]: on every
// replica. sqlfence fails with ErrNoToken then, and gormfence lets writes pass unless it has WithLockRequired. Default: the tick
// is left out.
func WithFailOpen() Option {
	return option(func(c *config) { c.failOpen = true })
}

// WithTrace adds hooks. Those of the Guard and of the job are all called. Default: slog is told of what the hooks Late, Lost,
// Failed, Unlocked and Differs hear of. A hook that is set, of the Guard's Trace or the job's, replaces that for what it hears
// of.
func WithTrace(t *Trace) Option {
	return option(func(c *config) {
		if c.traces = append(c.traces, t); t == nil {
			c.refuse("WithTrace(nil)")
		}
	})
}
