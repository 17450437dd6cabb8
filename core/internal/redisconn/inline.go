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
	// inlineFor is how long a command may take on its caller's goroutine. It is the longest that a caller whose context
	// is cancelled waits when the server does not answer.
	inlineFor = 250 * time.Millisecond
	// inlineBelow is how long the latest answer may have taken for the next command to run on its caller's goroutine.
	// It is far less than inlineFor, which a link that is usually slow would exceed.
	inlineBelow = 50 * time.Millisecond
	// inlinePause is how long no command runs on its caller's goroutine after one was not answered in time, which costs
	// the command its connection.
	inlinePause = 10 * time.Second
)

// Do is Send for a caller that has nothing else to do and can wait for up to patience. While no other command is under
// way it runs c on the caller's goroutine, and c is answered when Do returns. That saves the two hops to a lane and
// back, most of what a command costs a lone caller.
//
// This needs a client with ContextTimeoutEnabled. By default go-redis ignores the context while it reads, and the
// caller could not return when its context ends. With ContextTimeoutEnabled go-redis observes a deadline, but never a
// cancellation, hence inlineFor.
func (n *Conn) Do(ctx context.Context, c *Call, patience time.Duration) *Call {
	if c.Urgent || patience < inlineFor || !n.may(ctx) || !n.lanes.enter() {
		return n.Send(ctx, c)
	}
	short, cancel := context.WithTimeout(ctx, inlineFor)
	n.depart(short, c)
	var val any
	err := errPanicked
	defer func() { // even if a hook panics
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

// may reports whether the caller of a command with that context may run it now.
func (n *Conn) may(ctx context.Context) bool {
	took, now := time.Duration(n.took.Load()), n.Env.Now().Mono
	if !n.interruptible || took == 0 || took > inlineBelow || now < time.Duration(n.inline.Load()) {
		return false
	}
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) > inlineFor
}

// interruptible reports whether client observes the deadline of a context while it reads and writes. A timeout of -2,
// meant for connections that know no deadlines, makes go-redis set none at all. The options have it as -1 by now.
func interruptible(client redis.UniversalClient) bool {
	one, ok := client.(*redis.Client)
	return ok && one.Options().ContextTimeoutEnabled && one.Options().ReadTimeout >= 0 && one.Options().WriteTimeout >= 0
}

// ByLanes keeps callers from running commands themselves, for tests of answers that come late.
func (n *Conn) ByLanes() { n.inline.Store(math.MaxInt64) }

// Narrow keeps n to MinLanes, for tests of what gathers behind the lanes.
func (n *Conn) Narrow() { n.lanes.most = 0 }

// late reports whether err means that an answer did not come in time.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
