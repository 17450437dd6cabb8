// Package single is a lock on one Redis, which may be a Cluster or have a Sentinel: who owns the lock, how the owner
// learns of a grant, and how the lock is released.
package single

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// Redis is the one Redis that has all locks of a Locker.
type Redis struct {
	*redisconn.Conn
	inbox *Inbox
	chans sync.Pool // wake channels for reuse

	mu      sync.Mutex                     // guards what follows; never held during I/O
	waiting map[string]chan protocol.Grant // by owner: each that may be granted a lock through the inbox, until it has ended
	plans   map[planFor]*string
}

// New returns the Redis behind client. Grants arrive on channel, which nobody else may have. report is called with the
// reason if they do not arrive.
func New(client redis.UniversalClient, env *timing.Env, channel string, report func(error)) *Redis {
	r := &Redis{Conn: redisconn.New(client, env), waiting: map[string]chan protocol.Grant{}, plans: map[planFor]*string{}}
	r.inbox = NewInbox(r.Conn, channel, r.deliver)
	r.inbox.Failed = func(err error, _ bool) {
		if !errors.Is(err, errElsewhere) && !errors.Is(err, errMute) {
			err = fmt.Errorf("waiters poll, because SUBSCRIBE failed: %w", err)
		}
		report(fmt.Errorf("holdfast: %w", err))
	}
	return r
}

// Open opens the inbox for waiters, and returns a channel that is closed the next time it opens.
func (r *Redis) Open() <-chan struct{} { return r.inbox.Open() }

// Up reports whether the inbox can receive grants.
func (r *Redis) Up() bool { return r.inbox.Up() }

// Close is called when no call will wait any more.
func (r *Redis) Close() { r.inbox.Close() }

// Several is false: no majority is needed.
func (r *Redis) Several() bool { return false }

// Patience is how long to wait for one answer, and Allowance how long all that one call needs may take.
func (r *Redis) Patience(ttl time.Duration) time.Duration  { return timing.Patience(ttl) }
func (r *Redis) Allowance(ttl time.Duration) time.Duration { return timing.Patience(ttl) }

// Same reports whether o uses the same client, as far as that can be seen.
func (r *Redis) Same(o *Redis) bool {
	return reflect.TypeOf(r.Client).Comparable() && r.Client == o.Client
}

// Waiting returns how many owners may receive a grant.
func (r *Redis) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// expect makes o known to the inbox if that is up, and reports whether it is. Then a grant can reach o.
func (r *Redis) expect(o *Owner) bool {
	if !r.inbox.Up() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.wake == nil {
		if o.wake, _ = r.chans.Get().(chan protocol.Grant); o.wake == nil {
			o.wake = make(chan protocol.Grant, 1)
		}
		r.waiting[o.ID] = o.wake
	}
	return true
}

// unexpect is for an owner that has ended: from now on a grant to it is undone.
func (r *Redis) unexpect(o *Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.wake == nil {
		return
	}
	delete(r.waiting, o.ID)
	select {
	case <-o.wake:
	default:
	}
	r.chans.Put(o.wake)
	o.wake = nil
}

// deliver passes a message to the owner that it is for.
func (r *Redis) deliver(g protocol.Grant, names protocol.Names) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wake := r.waiting[g.Owner]
	if wake == nil {
		r.stray(names, g.Owner)
		return
	}
	select {
	case <-wake: // an older one
	default:
	}
	wake <- g
}

// stray undoes a grant to an owner that has ended, or that a delayed acquire put in line after its end.
func (r *Redis) stray(names protocol.Names, owner string) {
	names.Gone = names.Tombstone(owner)
	o := new(Owner)
	o.Init(r, names, Want{TTL: grantLease, ReentryID: owner}) // had it named a re-entry id, others may hold the lock under its id
	o.Tainted = true
	r.Env.Go(func() { _, _ = o.Tenure.Release(r.Env.Gate.Over, grantLease) })
}

// planFor is what the second argument of acquire.lua depends on.
type planFor struct {
	ttl   time.Duration
	block int
	waits bool
	told  bool
}

// plan returns that argument. A Locker needs only a few different ones, and keeps them.
func (r *Redis) plan(p planFor) *string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.plans[p]; s != nil {
		return s
	}
	var wait *protocol.Waiting
	if p.waits {
		wait = &protocol.Waiting{First: min(p.ttl, grantLease), Counted: !r.Many()}
		if p.told {
			wait.Inbox = r.inbox.channel
		}
	}
	text := protocol.AcquirePlan(p.ttl, p.block, wait)
	if len(r.plans) >= 100 {
		clear(r.plans)
	}
	r.plans[p] = &text
	return &text
}

// Claim returns a function that sends a claim, and sends the same claim again each time it is called.
func (r *Redis) Claim(names protocol.Names, tick int64, _ time.Duration, w protocol.Window) func(context.Context) *redisconn.Call {
	claimant := protocol.RandomID()
	return func(ctx context.Context) *redisconn.Call {
		c := new(redisconn.Call)
		return r.Send(ctx, c.Set(protocol.Claim(c.Room[:0], &names, tick, claimant, w)))
	}
}

// Inspect asks who holds each of several locks. A call whose answer did not come in time has neither Val nor Err.
func (r *Redis) Inspect(ctx context.Context, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call {
	calls := make([]*redisconn.Call, len(names))
	for i := range names {
		c := &redisconn.Call{Ctx: ctx}
		calls[i] = c.Set(protocol.Inspect(c.Room[:0], &names[i]))
	}
	sweep.Ask(ctx, r.Env, r.Patience(ttl), redisconn.Batch{r.Conn: calls})
	return calls
}
