package redisconn

import (
	"context"
	"errors"
	"math"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// inlineFor is how long a command may take on its caller's goroutine: what a caller whose context is cancelled waits
	// at most, where the server is silent.
	inlineFor = 250 * time.Millisecond
	// inlineBelow is how long the latest answer may have taken for the next one to be waited for like that: far less than
	// inlineFor, which a link that is slow as a rule would exceed.
	inlineBelow = 50 * time.Millisecond
	// inlinePause is for how long no command is run like that after one that was not answered in time, which costs its
	// connection.
	inlinePause = 10 * time.Second
)

// Do is Send for a caller that has nothing else to do and can wait for up to patience: while no other command is under way
// it runs c on the caller's goroutine, and c is answered when it returns. That saves the two hops to a lane and back, most of
// what a command costs a lone caller.
//
// It takes a client with ContextTimeoutEnabled: by default go-redis does not look at a context while it reads, and the
// caller could not return with its own. What it does not look at in any case is that a context is cancelled, hence inlineFor.
func (n *Conn) Do(ctx context.Context, c *Call, patience time.Duration) *Call {
	if c.Urgent || patience < inlineFor || !n.may(ctx) || !n.lanes.enter() {
		return n.Send(ctx, c)
	}
	short, cancel := context.WithTimeout(ctx, inlineFor)
	n.depart(short, c)
	var val any
	err := errPanicked
	defer func() { // also where a hook panics
		cancel()
		now := n.Env.Now().Mono
		if err != nil && late(err) {
			n.inline.Store(int64(now + inlinePause))
		}
		n.lanes.leave(now-c.At.Mono, now)
		n.answer(c, val, err)
	}()
	val, err = n.Run(c)
	return c
}

var errPanicked = errors.New("a hook of the client panicked")

// may tells whether a command with that context may be run by its caller now.
func (n *Conn) may(ctx context.Context) bool {
	took, now := time.Duration(n.took.Load()), n.Env.Now().Mono
	if !n.interruptible || took == 0 || took > inlineBelow || now < time.Duration(n.inline.Load()) {
		return false
	}
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) > inlineFor
}

// interruptible tells whether client looks at the deadline of a context while it reads and writes. It sets none at all where a
// timeout is -2, as for connections that know no deadlines, which is -1 by now.
func interruptible(client redis.UniversalClient) bool {
	one, ok := client.(*redis.Client)
	return ok && one.Options().ContextTimeoutEnabled && one.Options().ReadTimeout >= 0 && one.Options().WriteTimeout >= 0
}

// ByLanes keeps commands from being run by their callers, for tests of answers that come late.
func (n *Conn) ByLanes() { n.inline.Store(math.MaxInt64) }

// Narrow keeps n to MinLanes, for tests of what gathers behind them.
func (n *Conn) Narrow() { n.lanes.most = 0 }

// late tells whether err is that of an answer that did not come in time.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
