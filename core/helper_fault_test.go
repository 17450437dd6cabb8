package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// kind tells the scripts apart on the wire, by their number of keys and of arguments.
func kind(args []string) string { return holdfast.ScriptName(args) }

// first judges the first command of a kind, or of that name, and passes the others.
func first(want string, v servertest.Verdict) func([]string) servertest.Verdict {
	var n atomic.Int64
	return func(args []string) servertest.Verdict {
		if (kind(args) == want || args[0] == want) && n.Add(1) == 1 {
			return v
		}
		return servertest.Pass
	}
}

// after passes n commands of a kind, and judges the later ones.
func after(n int64, want string, v servertest.Verdict) func([]string) servertest.Verdict {
	var sent atomic.Int64
	return func(args []string) servertest.Verdict {
		if kind(args) == want && sent.Add(1) > n {
			return v
		}
		return servertest.Pass
	}
}

// every judges all commands of a kind, or of that name, so.
func every(want string, v servertest.Verdict) func([]string) servertest.Verdict {
	return func(args []string) servertest.Verdict {
		if kind(args) == want || args[0] == want {
			return v
		}
		return servertest.Pass
	}
}

// delayed holds a reply for d from now on.
func delayed(d time.Duration) servertest.Verdict {
	late := make(chan struct{})
	time.AfterFunc(d, func() { close(late) })
	return servertest.HoldReply(late)
}

// countKind passes all commands, and counts those of a kind.
func countKind(link *servertest.Link, want string) *atomic.Int64 {
	var n atomic.Int64
	link.OnCommand(func(args []string) servertest.Verdict {
		if kind(args) == want {
			n.Add(1)
		}
		return servertest.Pass
	})
	return &n
}

// lagging has WAIT answer as a server with n replicas does of which each needs lag to catch up. miniredis itself
// has none.
func lagging(t *testing.T, b *servertest.Bubble, n int, lag time.Duration) {
	t.Helper()
	release(t, acquire(t, newReplica(t, b).Locker, "start")) // there is a server from the first connection on
	b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if cmd != "WAIT" {
			return false
		}
		want, _ := strconv.Atoi(args[0])
		ms, _ := strconv.Atoi(args[1])
		switch timeout := time.Duration(ms) * time.Millisecond; {
		case want <= n && lag <= timeout:
			time.Sleep(lag)
			c.WriteInt(n)
		case lag <= timeout:
			time.Sleep(timeout)
			c.WriteInt(n)
		default:
			time.Sleep(timeout)
			c.WriteInt(0)
		}
		return true
	})
}

// hook is a hook of a client, of its commands and of its pipelines.
type hook struct {
	one  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	many func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.one == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.one(ctx, cmd, next) }
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.many == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.many(ctx, cmds, next) }
}

// argsOf are the arguments of a command, as the server sees them.
func argsOf(cmd redis.Cmder) []string {
	args := make([]string, len(cmd.Args()))
	for i, arg := range cmd.Args() {
		args[i] = fmt.Sprint(arg)
	}
	return args
}

// errRefused is what a link fails with that is told to refuse.
var errRefused = errors.New("connection refused")

// opaque is a client of which nobody can tell how many servers there are behind it: a Cluster, say, where a server does
// not know who listens at the others.
type opaque struct{ redis.UniversalClient }

// whenAsked is a context that does something when its Err is looked at for the second time.
type whenAsked struct {
	context.Context
	n int
	f func()
}

func (c *whenAsked) Err() error {
	if c.n++; c.n == 2 {
		c.f()
	}
	return c.Context.Err()
}

// each does the same to all.
func each[T any](all []T, do func(T)) {
	for _, one := range all {
		do(one)
	}
}
