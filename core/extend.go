package core

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// ask verifies the hold with Redis after the wall clock went past the lease and the monotonic clock did not:
// a suspended machine, whose rivals went on, or somebody who set the clock, and nothing happened. What Redis
// says is left replaces both deadlines: after a suspension the monotonic one comes too late.
func (h *hold) ask() {
	h.verify.Lock()
	defer h.verify.Unlock()
	now := h.locker.clock.Now()
	if h.ended.Load() != nil || now.Wall < h.wall.Load() {
		return // another caller has asked meanwhile
	}
	var lease time.Duration
	// A ballot's renewal would bring back what ran out meanwhile, whoever has had the lock since.
	if _, quorum := h.tenure.(*ballot); !h.cfg.noRenew && !quorum {
		lease = h.lease(now.Mono, h.cfg.ttl)
	}
	timer := h.locker.timers.Get(h.tenure.patience())
	defer h.locker.timers.Rest(timer)
	c := h.tenure.renew(context.Background(), lease)
	select {
	case <-c.Done:
	case <-timer.C:
		h.lose(errUnconfirmed)
		return
	}
	left, ok := protocol.ReadLeft(c.Val)
	switch {
	case c.Err != nil || !ok:
		h.lose(errUnconfirmed)
		return
	case left == 0:
		h.lose(errOtherOwner)
		return
	case left < 0: // somebody made the key persistent
		left = h.cfg.ttl.Milliseconds()
	}
	h.mu.Lock()
	if h.ended.Load() == nil && h.locker.clock.Now().Mono < time.Duration(h.deadline.Load()) {
		d := timing.Millis(left)
		d -= timing.Margin(d)
		h.deadline.Store(int64(min(c.At.Mono+d, h.limit)))
		h.wall.Store(c.At.Wall + int64(d))
	}
	h.mu.Unlock()
	h.locker.sched.replan(h, h.renewPoint())
}

// renewed takes the answer to a renewal that was sent at at into account.
func (h *hold) renewed(at timing.Instant, val any, err error) error {
	left, ok := protocol.ReadLeft(val)
	switch {
	case err != nil:
		return err
	case !ok:
		return errReply
	case left == 0:
		h.lose(errOtherOwner)
		return h.err()
	}
	if _, quorum := h.tenure.(*ballot); quorum && h.locker.clock.Now().Wall >= h.wall.Load() {
		// The machine was suspended meanwhile, and what ran out has been brought back, whoever had it in between.
		h.lose(errUnconfirmed)
		return h.err()
	}
	return h.confirm(at, timing.Millis(left))
}

// lease is how much to ask for when d is wanted: no more than WithMaxHold leaves.
func (h *hold) lease(now, d time.Duration) time.Duration {
	if h.limit == forever {
		return d
	}
	return max(time.Millisecond, min(d, timing.Covering(min(d, h.limit-now))))
}

// reserve notes that the lease may become as long as d, unless the hold has ended: its lease is another's then. It is
// either before the end, and the lock is not handed over within the process, or it sees the end.
func (h *hold) reserve(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended.Load() != nil {
		return false
	}
	h.longest.Store(max(h.longest.Load(), int64(d)))
	return true
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	timer := h.locker.timers.Get(0)
	defer h.locker.timers.Rest(timer)
	// Most of several masters have been asked, and for long enough: it would go on to hide that from the caller.
	_, quorum := h.tenure.(*ballot)
	fail := &opError{act: "extend", key: h.key(), outcome: ErrUnavailable}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		lapsed := h.lapsed // not err: it would ask Redis, without regard to ctx, what the renewal asks anyway
		if quorum {
			lapsed = h.err // see ask
		}
		if err := lapsed(); err == errReleased {
			return &opError{act: "extend", key: h.key(), outcome: ErrLost, cause: err}
		} else if err != nil {
			return err
		}
		if fail.context = ctx.Err(); fail.context != nil {
			return fail
		}
		now := h.locker.clock.Now().Mono
		left := time.Duration(h.deadline.Load()) - now
		timer.Reset(min(left, h.tenure.patience()))
		lease := h.lease(now, ttl)
		if !h.reserve(lease) {
			continue
		}
		c := h.tenure.renew(context.WithoutCancel(ctx), lease)
		select {
		case <-c.Done:
		case <-timer.C:
			fail.cause = redisconn.ErrSilence
			h.failed(redisconn.ErrSilence)
			if quorum {
				return fail
			}
			continue
		case <-ctx.Done():
			continue
		}
		err := h.renewed(c.At, c.Val, c.Err)
		if err == nil {
			h.locker.sched.replan(h, h.renewPoint())
			return nil
		}
		fail.cause = err
		if h.ended.Load() != nil {
			continue
		}
		h.failed(err)
		if quorum || permanent(err) {
			return fail
		}
		timer.Reset(min(left, pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}
