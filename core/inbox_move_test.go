package holdfast_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The servers change places and the old one lives on with the subscriptions. Two seconds later hand-overs are what they
// were, and each process has said once why it subscribed anew.
func TestInboxFollowsAnAddressThatMoves(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		bubble(t, func(t *testing.T, old *servertest.Bubble) {
			m := &moving{t: t, old: old, new: servertest.NewBubble(t), hangs: hangs}
			var told [4]reported
			var rs []*replica
			for i := range told {
				rs = append(rs, m.follow(holdfast.WithTrace(told[i].trace())))
			}
			handOvers(t, rs, "k", time.Second)
			before := handOvers(t, rs, "k", time.Second)
			if before < 90 {
				t.Fatalf("%d turns of 10 ms in 1 s", before)
			}
			m.move()
			handOvers(t, rs, "k", 2*time.Second)
			if after := handOvers(t, rs, "k", time.Second); after < before-before/50 {
				t.Errorf("%d turns in 1 s, %d before the move", after, before)
			}
			for i := range told {
				if n := told[i].count("subscribing again"); n != 1 {
					t.Errorf("reported: %v", told[i].all())
				}
			}
			for _, r := range rs {
				shutdown(t, r.Locker)
			}
		})
	}
}

// One that waits when the servers change places is told by the new one.
func TestWaiterFollowsAnAddressThatMoves(t *testing.T) {
	bubble(t, func(t *testing.T, old *servertest.Bubble) {
		m := &moving{t: t, old: old, new: servertest.NewBubble(t)}
		holder, r := m.follow(), m.follow()
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		time.Sleep(5 * time.Second)
		m.move(lock)
		time.Sleep(3 * time.Second) // for the next look, and the one behind it
		release(t, lock)
		begin := time.Now()
		release(t, got(t, c))
		lasted(t, begin, 0)
		shutdown(t, holder.Locker)
		shutdown(t, r.Locker)
	})
}

// A proxy that takes subscriptions and leads them elsewhere: to subscribe anew does not help, and is done more and more
// rarely. Waiters look by themselves meanwhile, at the pace of polling.
func TestInboxThatIsNeverHeard(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		misleadSubscriptions(b)
		var told reported
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(told.trace()))
		w := watchKey(t, b, "k")
		for i := range 2 {
			time.AfterFunc(10*time.Second, r.link.ResetCommands)
			if d := w.turn(holder, r, time.Minute); d > 260*time.Millisecond {
				t.Errorf("minute %d: polling took %v", i+1, d)
			}
			if n := r.link.Commands()["subscribe"]; n > 3 {
				t.Errorf("minute %d: %d subscriptions in 50 s", i+1, n)
			}
		}
		if n := told.count("subscribing again"); n != 1 || len(told.all()) != 1 {
			t.Errorf("reported: %v", told.all())
		}
		w.end()
		b.Redis.Server().SetPreHook(nil)
		empty(t, b, holder, r)
	})
}

// moving is an address that leads to one server, and then to another, while the first lives on: a failover, a name that
// was pointed elsewhere.
type moving struct {
	t        *testing.T
	old, new *servertest.Bubble
	moved    atomic.Bool
	hangs    bool // the old one, from then on
}

// follow is a client that goes where the address leads; what it is subscribed to stays where it is. go-redis' client
// for Sentinel does the same: it makes the connections of its pool anew, and no others.
func (m *moving) follow(opts ...holdfast.Option) *replica {
	m.t.Helper()
	from, to := m.old.NewLink(), m.new.NewLink()
	rdb := m.new.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if m.moved.Load() {
				return to.Dial(ctx, network, addr)
			}
			return from.Dial(ctx, network, addr)
		}
	})
	from.OnCommand(func(args []string) servertest.Verdict {
		switch {
		case !m.moved.Load():
			return servertest.Pass
		case args[0] != "ping":
			return servertest.LoseRequestAndClose // a connection of the pool
		case m.hangs:
			return servertest.LoseRequest
		}
		return servertest.Pass
	})
	return &replica{newLocker(m.t, rdb, opts...), rdb, to}
}

// move has the address lead to the new server, which has all that the old one had.
func (m *moving) move(locks ...*holdfast.Lock) {
	m.moved.Store(true)
	for _, lk := range locks {
		_ = m.new.Redis.Set(lk.Key(), holdfast.Owner(lk))
		m.new.Redis.SetTTL(lk.Key(), m.old.Redis.TTL(lk.Key()))
	}
}

// handOvers has the replicas take turns at key for d and returns how often each had it, holding it for 10 ms.
func handOvers(t *testing.T, rs []*replica, key string, d time.Duration) (n int64) {
	t.Helper()
	ctx := bounded(t, d)
	var turns atomic.Int64
	var all sync.WaitGroup
	for _, r := range rs {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = r.Do(ctx, key, func(context.Context) error {
					time.Sleep(10 * time.Millisecond)
					turns.Add(1)
					return nil
				})
			}
		})
	}
	all.Wait()
	return turns.Load()
}

// misleadSubscriptions has the server take subscriptions, and deliver nothing.
func misleadSubscriptions(b *servertest.Bubble) {
	b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if cmd != "SUBSCRIBE" {
			return false
		}
		c.Block(func(w *server.Writer) {
			w.WritePushLen(3)
			w.WriteBulk("subscribe")
			w.WriteBulk(args[0])
			w.WriteInt(1)
		})
		return true
	})
}
