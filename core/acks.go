package holdfast

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const maxAcksTimeout = time.Minute

// WithReplicaAcks makes an acquisition succeed only after n replicas of the key's master, at least 1, have acknowledged
// it, so that a failover to one of them keeps the lock. If fewer do within timeout, the lock is freed again and the
// call fails with an [ErrUnavailable] that says how many did. Default: wait for none.
//
// timeout is 1 ms to 1 min, in whole milliseconds, and ends before [Lock.Deadline]. If it is too short, a replica
// that stumbles fails acquisitions. If it is too long, callers wait, and each occupies a connection of the client's
// pool, which can delay renewals.
//
// A failover can still forget the lock: the replica that is promoted may not be one that acknowledged, or may have
// restarted without its data, and renewals and [Lock.Extend] do not wait for replicas.
//
// An acquisition costs two more commands and one more round trip, and is not handed over within the process. The client
// must be a *redis.Client, *redis.ClusterClient or *redis.Ring.
func WithReplicaAcks(n int, timeout time.Duration) CallOption {
	return callOption(func(c *config) error {
		if n < 1 || timeout < time.Millisecond || timeout > maxAcksTimeout {
			return invalid("WithReplicaAcks(%d, %v): want at least 1 replica, and 1ms to %v", n, timeout, maxAcksTimeout)
		}
		c.acks, c.acksWithin = n, timeout.Truncate(time.Millisecond)
		return nil
	})
}

// confirm waits until the replicas have a lease that was just granted. It returns how long the lease is then, and from
// when on: the renewal that this takes counts.
func (a *acquisition) confirm() (at timing.Instant, d time.Duration, err error) {
	a.held, a.err, a.outage.on = nil, nil, false
	now := a.locker.env.Now
	limit := a.cfg.acksWithin + timing.Patience(a.cfg.ttl)
	end := now().Mono + limit
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c := a.stake.Owner.(*single.Owner).Confirm(a.ctx, a.cfg.acks, a.cfg.acksWithin, limit)
		switch why := a.await(end-now().Mono, c.Done); why {
		case 1:
		case timing.Elapsed:
			c.Leave()
			a.failed(redisconn.ErrSilence)
			return at, 0, a.failure(nil)
		default:
			c.Leave()
			return at, 0, a.stopped(why)
		}
		cause := c.Err
		r, _ := c.Val.(single.Acked)
		told := cause == nil
		switch {
		case !told:
		case r.Left == 0:
			cause = errOtherOwner
		case r.Replicas < int64(a.cfg.acks):
			cause = fmt.Errorf("%d of %d replicas acknowledged in %v", r.Replicas, a.cfg.acks, a.cfg.acksWithin)
		default:
			return c.At, timing.Millis(r.Left), nil
		}
		if told { // Redis serves, for calls that want less
			a.err = cause
			a.cfg.traces.emit(nodeError, Event{Key: a.key.Lock, Attempts: a.attempts, Err: cause})
			return at, 0, a.failure(nil)
		}
		a.failed(cause)
		if redisconn.Permanent(cause) {
			return at, 0, a.failure(nil)
		}
		if why := a.await(min(pause, end-now().Mono)); why != timing.Elapsed {
			return at, 0, a.stopped(why)
		}
		if now().Mono >= end {
			return at, 0, a.failure(nil)
		}
	}
}
