package holdfast

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

const maxAcksTimeout = time.Minute

// WithReplicaAcks makes an acquisition succeed only after n replicas of the key's master have acknowledged it, so that a
// failover to one of them keeps the lock. If fewer than n acknowledge within timeout, or if no replica is known, the lock
// is freed again and the call fails with an [ErrUnavailable] whose cause is, for example, "2 of 3 replicas acknowledged
// in 100ms". The call does not start over. Default: wait for none.
//
// n is at least 1. timeout is 1 ms to 1 min, in whole milliseconds, and must end before the lock would be lost, which is
// somewhat before its TTL: see [Lock.Deadline]. If it is too short, a replica that stumbles fails acquisitions. If it is
// too long, it delays all callers, TryAcquire included: each waits for up to timeout plus a quarter of the TTL (at most 1
// s) while the lease runs and others find the lock held. Each call also occupies a connection of the client's pool until
// the acknowledgements or the timeout arrive, even if its context ends before. A pool that is used up in this way delays
// renewals.
//
// The option narrows the window in which a failover forgets a lock. It does not close it: the replica that is promoted
// may not be one of those that acknowledged, and those may restart without their data. Renewals and [Lock.Extend] do not
// wait for replicas, so that after a failover a lock may end sooner. Work that must not be done twice still needs the
// token.
//
// An acquisition costs two more commands and one more round trip, in addition to the one between master and replicas, and
// is not handed over within the process, see [WithLocalHandover]. A nested acquisition, see [WithReentrancy], waits for
// no replica, and neither does [Locker.Claim].
//
// The client must be a *redis.Client, *redis.ClusterClient or *redis.Ring. Others are refused with an [ErrInvalid],
// because they do not let holdfast send two commands on one connection.
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
	a.held, a.err, a.failing = nil, nil, false
	now := a.locker.env.Now
	limit := a.cfg.acksWithin + timing.Patience(a.cfg.ttl)
	end := now().Mono + limit
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c := a.stake.owner.(*single.Owner).Confirm(a.ctx, a.cfg.acks, a.cfg.acksWithin, limit)
		switch reason, _ := a.listen(c.Done, nil, nil, end-now().Mono); reason {
		case answered:
		case elapsed:
			a.failed(redisconn.ErrSilence)
			return at, 0, a.failure(nil)
		default:
			return at, 0, a.stopped(reason)
		}
		cause := c.Err
		r := c.Val.(single.Acked)
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
		if reason, _ := a.listen(nil, nil, nil, min(pause, end-now().Mono)); reason != elapsed {
			return at, 0, a.stopped(reason)
		}
		if now().Mono >= end {
			return at, 0, a.failure(nil)
		}
	}
}
