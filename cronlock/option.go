package cronlock

import (
	"slices"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// An Option configures a [Guard] or one of its jobs. A job's options override the Guard's; those within WithLock and
// WithClaim do so one by one, and the hooks of all traces are called.
type Option interface{ apply(*config) }

type config struct {
	wiring.Mistakes
	work     tick.Work
	failOpen bool
	traces   []*Trace
	ahead    time.Duration // how far the clock of this replica is ahead of the true time, in tests
}

// set applies opts, which check what a Locker does not know.
func (c *config) set(opts []Option) {
	for _, o := range opts {
		if o == nil {
			c.Refuse("a nil option")
			continue
		}
		o.apply(c)
	}
}

// clone returns a copy that shares no room for appended options with c.
func (c config) clone() config {
	c.work.Lock, c.work.Claim, c.traces = slices.Clip(c.work.Lock), slices.Clip(c.work.Claim), slices.Clip(c.traces)
	return c
}

// check lets the Locker check the options for a job, which it names. "cron" keeps its key apart from other keys.
func (c *config) check(locker *holdfast.Locker, job string) {
	c.work.Name = holdfast.Key("cron", job)
	if err := c.work.Check(locker); err != nil {
		c.Refuse("the options of the Locker, of WithLock (the TTL is half of the period unless WithLock sets one) or of WithClaim: %v", err)
	}
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// Policy says what happens to a tick whose key is busy: [Skip], [Wait] or [Allow].
type Policy struct {
	wait  time.Duration
	waits bool // for that time, and not for what is left of a lease
	allow bool
}

// Skip does not run a tick whose key stays busy for what is left of the holder's lease: the holder may have died.
func Skip() Policy { return Policy{} }

// Wait does not run a tick whose key stays busy for max. A max below the lease may skip the tick after a holder has
// died.
func Wait(max time.Duration) Policy { return Policy{wait: max, waits: true} }

// Allow lets runs overlap, without a lock, and so without a fencing token. Each tick still runs only once.
func Allow() Policy { return Policy{allow: true} }

// WithBusy sets what happens to a tick whose key is busy. No tick waits beyond the bound of [WithLateness]. Default:
// [Skip].
func WithBusy(p Policy) Option {
	return option(func(c *config) {
		if p.wait < 0 {
			c.Refuse("WithBusy(Wait(%v)): negative", p.wait)
		}
		if !p.waits {
			p.wait = -1
		}
		c.work.Wait, c.work.Overlap = p.wait, p.allow
	})
}

// WithLateness sets how long after its tick a job can still begin, if Redis did not answer before or the process was
// paused. Default: half of the period, at most 1 min. A d above an hour also needs a wider window: see [WithClaim].
//
// A tick that is more than d late by the replica's own clock, not counting a wait for the tick, does not run on this
// replica, nor on any other if this one has claimed it.
func WithLateness(d time.Duration) Option {
	return option(func(c *config) {
		if d <= 0 {
			c.Refuse("WithLateness(%v): want more than 0", d)
		}
		c.work.Lateness = d
	})
}

// WithClaim passes options to [tick.Claim], such as [tick.WithWindow]: a replica whose clock is off by more than that
// runs nothing. Default: 1 h behind and 10 s ahead.
func WithClaim(opts ...tick.Option) Option {
	return option(func(c *config) { c.work.Claim = append(c.work.Claim, opts...) })
}

// WithLock passes options to the acquisition of the lock. They override the Locker's, and the lease that the Guard
// chooses. [holdfast.WithWait] has no effect here: see [Wait].
func WithLock(opts ...holdfast.CallOption) Option {
	return option(func(c *config) { c.work.Lock = append(c.work.Lock, opts...) })
}

// WithFailOpen runs a job without the lock and the claim while Redis is unavailable. It gives up mutual exclusion
// exactly when the system is in trouble: every replica that gets no answer until the bound of [WithLateness], or is
// refused for good, runs the job. Then sqlfence fails with ErrNoToken. It does not apply to [Guard.RunNow]. Default:
// the tick does not run.
func WithFailOpen() Option {
	return option(func(c *config) { c.failOpen = true })
}

// WithTrace adds hooks, for logs and metrics. Default: slog logs what the hooks Late, Lost, Failed, Unlocked and
// Differs report. Setting a hook replaces that.
func WithTrace(t *Trace) Option {
	return option(func(c *config) {
		if c.traces = append(c.traces, t); t == nil {
			c.Refuse("WithTrace(nil)")
		}
	})
}
