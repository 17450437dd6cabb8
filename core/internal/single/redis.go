// Package single is a lock on one Redis, which may be a Cluster or have a Sentinel: who owns the lock, how the owner
// learns of a grant, and how the lock is released.
package single

import (
	"context"
	"errors"
	"fmt"
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
	Seal  protocol.Seal // makes the ids of all owners
	inbox *Inbox
	chans sync.Pool // wake channels for reuse

	mu      sync.Mutex        // guards what follows; never held during I/O
	waiting map[string]*Owner // by id: each that may be granted a lock through the inbox, until it has ended
	plans   map[planFor]*string
}

// New returns the Redis behind client. Grants arrive on channel, which nobody else may have. report is called with the
// reason if they do not arrive.
func New(client redis.UniversalClient, env *timing.Env, channel string, report func(error)) *Redis {
	r := &Redis{Conn: redisconn.New(client, env), Seal: protocol.NewSeal(), waiting: map[string]*Owner{}, plans: map[planFor]*string{}}
	r.inbox = NewInbox(r.Conn, channel, r.Seal.Owns, r.deliver)
	r.inbox.Dropped = func(err error) { report(fmt.Errorf("holdfast: %w", err)) }
	r.Report = report
	r.inbox.Failed = func(err error, _ bool) {
		if !errors.Is(err, errElsewhere) && !errors.Is(err, errMute) {
			err = fmt.Errorf("waiters poll, because SUBSCRIBE failed: %w", err)
		}
		report(fmt.Errorf("holdfast: %w", err))
	}
	return r
}

// Open opens the inbox for waiters. It reports whether the inbox can receive grants, and returns a channel that is closed
// the next time it can.
func (r *Redis) Open() (news <-chan struct{}, up bool) { return r.inbox.Open(), r.inbox.Up() }

// Close is called when no call will wait any more, and again with over when the Locker is shut down.
func (r *Redis) Close(over bool) {
	r.inbox.Close()
	r.Conn.Close(over)
}

// Patience is how long to wait for one answer, and how long all that one call needs may take.
func (r *Redis) Patience(ttl time.Duration) (answer, call time.Duration) {
	return timing.Patience(ttl), timing.Patience(ttl)
}

// Clients returns the client.
func (r *Redis) Clients() []redis.UniversalClient { return []redis.UniversalClient{r.Client} }

// Check refuses nothing.
func (r *Redis) Check(Want) error { return nil }

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
		if o.wake, _ = r.chans.Get().(chan struct{}); o.wake == nil {
			o.wake = make(chan struct{}, 1)
		}
		r.waiting[o.ID] = o
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

// deliver passes a message to the owner that it is for, which has an id of ours. It reports whether the message can be
// true.
func (r *Redis) deliver(g protocol.Grant) bool {
	r.mu.Lock()
	o := r.waiting[g.Owner]
	if o == nil {
		r.mu.Unlock() // the cleaner may do anything else that is due
		names, err := protocol.NameKeys(g.Key)
		if err == nil && r.inbox.Once(g.Owner, grantLease) { // which is how long stray goes on
			r.stray(names, g.Owner)
		}
		return err == nil
	}
	defer r.mu.Unlock()
	if o.Names.Lock != g.Key {
		return false
	}
	o.grant = grant{g.Token, g.Time}
	select {
	case o.wake <- struct{}{}:
	default: // it has not seen an older one
	}
	return true
}

// stray undoes a grant to an owner that has ended, or that a delayed acquire put in line after its end.
func (r *Redis) stray(names protocol.Names, owner string) {
	names.Gone = names.Tombstone(owner)
	t := Tenure{Tainted: true, Sent: r.Env.Now().Mono}
	t.Start(r.Conn, nil, names, grantLease)
	t.Undo()
}

// planFor is what the second argument of acquire.lua depends on.
type planFor struct {
	ttl   time.Duration
	block int
	share *Share
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
		wait = &protocol.Waiting{First: min(p.ttl, grantLease), Weight: 1, Counted: !r.Many()}
		if p.share != nil {
			wait.Share, wait.Weight = p.share.Name, max(1, p.share.Weight)
		}
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
		return r.Send(ctx, c.Set(protocol.Claim(c.Buf[:0], &names, tick, claimant, w)))
	}
}

// Inspect asks about each of several locks. A call whose answer did not come in time has neither Val nor Err.
func (r *Redis) Inspect(ctx context.Context, ask protocol.Question, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call {
	calls := make([]*redisconn.Call, len(names))
	for i := range names {
		c := new(redisconn.Call)
		calls[i] = c.Set(ask(c.Buf[:0], &names[i]))
	}
	sweep.Ask(ctx, r.Env, timing.Patience(ttl), calls, func(int) *redisconn.Conn { return r.Conn })
	return calls
}
