package core

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

func (t *tenure) undo() {
	t.node.inbox.remove(t)
	if !t.settle() {
		return
	}
	t.node.gate.Join()
	go func() {
		defer t.node.gate.Leave()
		// An answer that is about to come makes the tombstone, or the whole command, needless.
		ctx, cancel := context.WithTimeout(context.Background(), timing.Patience(t.cfg.ttl))
		defer cancel()
		for _, c := range t.pending {
			select {
			case <-c.Done:
			case <-ctx.Done():
			}
		}
		if t.settle() {
			// Once the last acquire's lease has run out there is nothing left to undo.
			_, _ = t.forget(t.node.gate.Over, t.ends()-t.node.clock.Now().Mono)
		}
	}()
}

// forget releases, whether or not Redis still has the lock as ours.
func (t *tenure) forget(ctx context.Context, limit time.Duration) (outcome, cause error) {
	return t.goOn(ctx, nil, limit)
}

// goOn is forget after its first command, c, where that was sent.
func (t *tenure) goOn(ctx context.Context, c *redisconn.Call, limit time.Duration) (outcome, cause error) {
	now := t.node.clock.Now
	end := now().Mono + limit
	done := ctx.Done()
	if ctx.Err() != nil {
		done = nil
		end = now().Mono + min(limit, releaseGrace)
	}
	timer := t.node.timers.Get(0)
	defer t.node.timers.Rest(timer)

	cause = redisconn.ErrSilence
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if c == nil {
			if !t.settle() {
				return nil, nil // the acquires turned out to have changed nothing
			}
			c = t.sendForget(ctx, nil)
		}
		timer.Reset(min(c.At.Mono+timing.Patience(t.cfg.ttl), end) - now().Mono)
		select {
		case <-c.Done:
			c.Heard()
			if c.Err == nil {
				return t.forgot(c.Val)
			}
			cause = c.Err
			t.resent = t.resent || !redisconn.Harmless(c.Err)
			if permanent(c.Err) {
				return ErrUnavailable, cause
			}
			timer.Reset(min(pause, end-now().Mono))
			select {
			case <-done:
				return ErrUnavailable, cause
			case <-timer.C:
			}
		case <-done:
			c.Leave()
			t.resent = true
			return ErrUnavailable, cause
		case <-timer.C:
			c.Leave()
			t.resent = true
		}
		if now().Mono >= end {
			return ErrUnavailable, cause
		}
		c = nil
	}
}

// sendForget sends one, and has then, unless it is nil, told what came of it.
func (t *tenure) sendForget(ctx context.Context, then func(c *redisconn.Call)) *redisconn.Call {
	c := t.call()
	c.Number = t.token // which may change while c is under way
	if ctx.Done() != nil {
		c.Lasting.Context = ctx
		ctx = &c.Lasting
	}
	if then != nil {
		c.Then = func(any, error) { then(c) }
	}
	tainted := t.tainted || len(t.pending) > 0
	if t.node.votes {
		return t.node.Send(ctx, c.Set(protocol.Yield(c.Room[:0], t.key, &t.names, &t.owner, &c.Number, tainted, t.waiter)))
	}
	return t.node.Send(ctx, c.Set(protocol.Forget(c.Room[:0], t.key, &t.names, &t.owner, &c.Number, tainted)))
}

// stray undoes a grant to an owner that nobody here knows: any more, or ever.
func (n *node) stray(names protocol.Names, owner string) {
	n.gate.Join()
	go func() {
		defer n.gate.Leave()
		// Others may have the lock under its id, if it had named a re-entry id.
		names.Gone = names.Tombstone(owner)
		names.Enter()
		t := &tenure{node: n, key: names.Lock, tainted: true}
		t.stake = stake{owner: owner, cfg: &config{ttl: grantLease, reentryID: owner}, names: names}
		_, _ = t.forget(n.gate.Over, grantLease)
	}()
}

func (t *tenure) forgot(val any) (outcome, cause error) {
	r, ok := protocol.ReadForgotten(val)
	switch {
	case !ok:
		return ErrUnavailable, errReply
	case r == protocol.Released, r == protocol.Already && t.resent:
		return nil, nil
	case r == protocol.Unknown && t.resent: // an earlier one may have freed it before the fence was forgotten
		return ErrUnavailable, errForgotten
	}
	// Where it was released before, it was not by us: the server fell back to a state from before this tenure, and another
	// one came since.
	return ErrLost, nil
}
