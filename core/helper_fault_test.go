package holdfast_test

import (
	"context"
	"errors"
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

// first judges the first command of a kind and passes the others.
func first(want string, v servertest.Verdict) func([]string) servertest.Verdict {
	var n atomic.Int64
	return func(args []string) servertest.Verdict {
		if kind(args) == want && n.Add(1) == 1 {
			return v
		}
		return servertest.Pass
	}
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

// each does the same to all links.
func each(links []*servertest.Link, do func(*servertest.Link)) {
	for _, l := range links {
		do(l)
	}
}
