package holdfast_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func TestReplicaAcksCostTwoCommandsAndCountAsARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 2, 3*time.Second)
		var acquired holdfast.Event
		r := newReplica(t, b, holdfast.WithReplicaAcks(2, 5*time.Second), holdfast.WithReentrancy(),
			holdfast.WithTrace(&holdfast.Trace{Acquired: func(e holdfast.Event) { acquired = e }}))
		warm(t, r)
		begin := time.Now()
		b.ResetCommands()
		lock := acquire(t, r.Locker, "k")
		lasted(t, begin, 3*time.Second)
		if got := b.Commands(); got["evalsha"] != 1 || got["eval"] != 1 || got["wait"] != 1 || got.Total() != 3 {
			t.Errorf("commands: %v, want the acquisition, a renewal and a WAIT", got)
		}
		// The wait is not added to the lease, on neither side.
		left, ttl := lock.Deadline().Sub(begin), b.Redis.TTL("k")
		if left != 15*time.Second-holdfast.Margin(15*time.Second) || ttl != 12*time.Second {
			t.Errorf("deadline %v after the start, TTL %v", left, ttl)
		}
		if acquired.Elapsed != 3*time.Second || acquired.Token != lock.Token() {
			t.Errorf("Trace.Acquired: %+v, want 3s elapsed", acquired)
		}
		// Nothing that follows waits again.
		b.ResetCommands()
		begin = time.Now()
		nested, err := r.Acquire(lock.Context(background), "k")
		must(t, err)
		release(t, nested)
		fine(t, lock.Extend(background, 15*time.Second))
		lasted(t, begin, 0)
		time.Sleep(time.Minute)
		if err := lock.Err(); err != nil || b.Commands()["wait"] != 0 {
			t.Errorf("after a minute: %v, %v", err, b.Commands())
		}
		release(t, lock)
		shutdown(t, r.Locker)
	})
}

// A lock that too few replicas have is no lock, and is free for others.
func TestTooFewAcksFailAndFreeTheKey(t *testing.T) {
	for _, c := range []struct {
		n    int
		lag  time.Duration
		want string
	}{
		{2, time.Millisecond, "2 of 3 replicas acknowledged in 100ms"},
		{3, time.Second, "0 of 3 replicas acknowledged in 100ms"},
		{0, 0, "0 of 3 replicas acknowledged in 100ms"}, // miniredis itself answers at once
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			if c.n > 0 {
				lagging(t, b, c.n, c.lag)
			}
			failures := &reported{}
			r := newReplica(t, b, holdfast.WithTrace(failures.trace()))
			_, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(3, 100*time.Millisecond))
			same(t, err, `holdfast: acquire "k": no verdict from redis: `+c.want)
			wantIs(t, err, holdfast.ErrUnavailable)
			if errors.Is(err, holdfast.ErrNotAcquired) || errors.Is(err, holdfast.ErrLost) {
				t.Errorf("got %v, want nothing but ErrUnavailable", err)
			}
			if failures.count(c.want) != 1 {
				t.Errorf("Trace.NodeError: %v", failures.all())
			}
			unheld(t, b, "k")
			release(t, acquire(t, newReplica(t, b).Locker, "k"))
			release(t, acquire(t, r.Locker, "k"))
			shutdown(t, r.Locker)
			if keys := slices.DeleteFunc(b.Redis.Keys(), func(k string) bool { return strings.HasSuffix(k, ":~fence") }); len(keys) > 0 {
				t.Errorf("left behind: %q", keys)
			}
		})
	}
}

func TestWaitForAcksEndsWithItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 5*time.Second)
		r := newReplica(t, b, holdfast.WithReplicaAcks(1, 10*time.Second))
		for end, want := range map[time.Duration]error{2 * time.Second: context.DeadlineExceeded, time.Second: context.Canceled} {
			ctx, cancel := context.WithTimeout(background, 2*time.Second)
			if want == context.Canceled {
				time.AfterFunc(end, cancel)
			}
			begin := time.Now()
			_, err := r.Acquire(ctx, "k")
			wantIs(t, err, holdfast.ErrUnavailable, want)
			lasted(t, begin, end)
			cancel()
			unheld(t, b, "k")
		}
		// Its holder before is no reason.
		held := acquire(t, newReplica(t, b).Locker, "held")
		time.AfterFunc(time.Second, func() { release(t, held) })
		_, err := r.Acquire(bounded(t, 4*time.Second), "held")
		wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
		if errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, nobody else had it", err)
		}

		time.Sleep(10 * time.Second)
		begin, down := time.Now(), make(chan time.Duration)
		time.AfterFunc(time.Second, func() {
			shutdown(t, r.Locker)
			down <- time.Since(begin)
		})
		_, err = r.Acquire(background, "k")
		wantIs(t, err, holdfast.ErrClosed)
		lasted(t, begin, time.Second)
		unheld(t, b, "k")
		if got := <-down; got != 5*time.Second {
			t.Errorf("Shutdown returned %v after the start, want 5s, with the WAIT under way", got)
		}
	})
}

// A grant from the line begins with a short lease and was written on somebody else's connection.
func TestGrantFromTheLineWaitsForAcks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 4*time.Second) // longer than a grant's first lease
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTTL(30*time.Second))
		warm(t, r)
		for _, within := range []time.Duration{10 * time.Second, time.Second} {
			lock := acquire(t, holder.Locker, "k")
			waiter := call(background, r, "k", holdfast.WithReplicaAcks(1, within))
			time.Sleep(500 * time.Millisecond)
			b.ResetCommands()
			begin := time.Now()
			release(t, lock)
			next := <-waiter
			if n := b.Commands(); n["wait"] != 1 || n["eval"] != 1 {
				t.Errorf("within %v: commands %v", within, n)
			}
			if within == time.Second {
				wantIs(t, next.err, holdfast.ErrUnavailable)
				lasted(t, begin, within)
				unheld(t, b, "k")
				continue
			}
			lasted(t, begin, 4*time.Second)
			if d := time.Until(next.lock.Deadline()); d != 26*time.Second-holdfast.Margin(30*time.Second) {
				t.Errorf("deadline in %v, want the whole lease less 4s", d)
			}
			release(t, next.lock)
		}
		shutdown(t, r.Locker)
		shutdown(t, holder.Locker)
	})
}

// Calls of one process that queue for the lock have it acknowledged each, and one that fails passes its turn on to
// calls that want less.
func TestAcksAreNotHandedOverWithinAProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 10*time.Millisecond)
		r := newReplica(t, b)
		enough, tooMany := holdfast.WithReplicaAcks(1, time.Second), holdfast.WithReplicaAcks(2, time.Second)
		lock := acquire(t, r.Locker, "k")
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, opts := range [][]holdfast.CallOption{{enough}, {}, {enough}, {tooMany}, {}, {enough}, {tooMany}, {enough}} {
			wg.Go(func() {
				err := r.Do(background, "k", func(context.Context) error {
					time.Sleep(time.Millisecond)
					return nil
				}, opts...)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					wantIs(t, err, holdfast.ErrUnavailable)
					order = append(order, "failed")
				}
				order = append(order, strconv.Itoa(i))
			})
			time.Sleep(time.Millisecond)
		}
		b.ResetCommands()
		begin := time.Now()
		release(t, lock)
		wg.Wait()
		if got, want := strings.Join(order, " "), "0 1 2 failed 3 4 5 failed 6 7"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if n := b.Commands()["wait"]; n != 6 {
			t.Errorf("%d times WAIT for 6 that asked for it", n)
		}
		lasted(t, begin, 2*time.Second, 200*time.Millisecond)
		unheld(t, b, "k")
		shutdown(t, r.Locker)
	})
}

// A call that joins the holders of an id waits for the replicas too, and leaves the lock with the others where they lag.
func TestReplicaAcksWithAReentryID(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 10*time.Millisecond)
		r, c := newReplica(t, b), newReplica(t, b)
		id := holdfast.WithReentryID("id")
		one := acquire(t, r.Locker, "k", id, holdfast.WithReplicaAcks(1, time.Second))
		two := acquire(t, c.Locker, "k", id, holdfast.WithReplicaAcks(1, time.Second))
		if n := b.Commands()["wait"]; n != 2 || one.Token() != two.Token() {
			t.Errorf("%d times WAIT for two", n)
		}
		release(t, one)
		_, err := r.TryAcquire(background, "k", id, holdfast.WithReplicaAcks(2, time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "1 of 2 replicas") {
			t.Error(err)
		}
		shutdown(t, r.Locker)
		if err := two.Extend(background, time.Minute); err != nil || !b.Redis.Exists("k") {
			t.Errorf("the one who had it: %v", err)
		}
		release(t, two)
		unheld(t, b, "k")
		shutdown(t, c.Locker)
	})
}

// What can become of the renewal and the WAIT on their way.
func TestWaitForAcksUnderFaults(t *testing.T) {
	const within, ttl = 1500 * time.Millisecond, 8 * time.Second // within and a second is less than the 3 s for which go-redis reads
	for name, test := range map[string]struct {
		kind  string
		v     servertest.Verdict
		cause string        // "" for a lock
		took  time.Duration // at most
	}{
		"renewal refused, connection gone": {"renew", servertest.LoseRequestAndClose, "", time.Second},
		"renewal unanswered, closed":       {"renew", servertest.LoseReplyAndClose, "", time.Second},
		"WAIT unanswered, closed":          {"wait", servertest.LoseReplyAndClose, "", time.Second},
		"renewal lost":                     {"renew", servertest.LoseRequest, "no answer in time", within + time.Second},
		"WAIT lost":                        {"wait", servertest.LoseRequest, "no answer in time", within + time.Second},
		"WAIT unanswered":                  {"wait", servertest.LoseReply, "no answer in time", within + time.Second},
		"taken away in between":            {"", servertest.Pass, "no longer ours in Redis", 0},
		"a rival's in between":             {"", servertest.Pass, "no longer ours in Redis", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				lagging(t, b, 1, 10*time.Millisecond)
				r := newReplica(t, b, holdfast.WithTTL(ttl))
				warm(t, r)
				judge := first(test.kind, test.v)
				r.link.OnCommand(func(args []string) servertest.Verdict {
					if test.kind == "" && kind(args) == "renew" {
						b.Redis.Del("k")
						if name == "a rival's in between" {
							_ = b.Redis.Set("k", "a rival's")
						}
					}
					return judge(args)
				})
				begin := time.Now()
				lock, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(1, within))
				lasted(t, begin, 0, test.took+20*time.Millisecond)
				r.link.OnCommand(nil)
				if test.cause == "" {
					must(t, err)
					if d := time.Until(lock.Deadline()); d > ttl-holdfast.Margin(ttl)-10*time.Millisecond {
						t.Errorf("deadline in %v: counted from the answer", d)
					}
					release(t, lock)
				} else {
					wantIs(t, err, holdfast.ErrUnavailable)
					if !contains(err, `"k"`, test.cause) || errors.Is(err, holdfast.ErrLost) {
						t.Errorf("got %v, want ErrUnavailable because %s", err, test.cause)
					}
					time.Sleep(time.Second)
					if v, _ := b.Redis.Get("k"); v != "" && v != "a rival's" {
						t.Errorf("the key was left behind: %q", v)
					}
				}
				shutdown(t, r.Locker)
			})
		})
	}
}

// A refusal for good is not asked for again, one that passes is.
func TestRefusedWaitFailsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 0, 0)
		r := newReplica(t, b)
		var reply string
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "WAIT" {
				c.WriteError(reply)
			}
			return cmd == "WAIT"
		})
		for _, c := range []struct {
			reply, text   string
			within, lasts time.Duration
			waits         int64 // at most
		}{
			{"NOPERM this user has no permissions to run the 'wait' command", "NOPERM", 10 * time.Second, 0, 1},
			{"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "UNBLOCKED", 2 * time.Second, 3 * time.Second, 20},
		} {
			reply = c.reply
			b.ResetCommands()
			begin := time.Now()
			_, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(1, c.within))
			wantIs(t, err, holdfast.ErrUnavailable)
			if n := b.Commands()["wait"]; !contains(err, c.text) || n > c.waits || c.waits > 1 && n < 3 {
				t.Errorf("got %v after %d times WAIT", err, n)
			}
			lasted(t, begin, c.lasts) // a second of patience with what passes
			unheld(t, b, "k")
		}
		shutdown(t, r.Locker)
	})
}

// An answer that comes when the lease is over for us is none, and the next look begins a new tenure.
func TestAcksThatComeTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 900*time.Millisecond)
		r := newReplica(t, b, holdfast.WithTTL(time.Second), holdfast.WithoutRenewal(), holdfast.WithReplicaAcks(1, 920*time.Millisecond))
		c := newReplica(t, b)
		var mu sync.Mutex
		var owners []string
		r.link.OnCommand(func(args []string) servertest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if kind(args) == "renew" {
				owners = append(owners, args[4])
			}
			if args[0] == "wait" && len(owners) == 1 {
				return delayed(time.Second)
			}
			return servertest.Pass
		})
		lock := await(t, r.Locker, "k")
		mu.Lock()
		if len(owners) != 2 || owners[0] == owners[1] {
			t.Errorf("owners %q, want another one for the second try", owners)
		}
		mu.Unlock()
		if err := lock.Err(); err != nil || time.Until(lock.Deadline()) > 50*time.Millisecond {
			t.Errorf("%v, deadline in %v", err, time.Until(lock.Deadline()))
		}
		release(t, lock)
		release(t, acquire(t, c.Locker, "k"))
		shutdown(t, r.Locker)
	})
}

// The slot of a key moves between the grant and the renewal: the client's map of the Cluster is made anew, and the
// node asked that has the key now.
func TestAcksFollowAMovedSlot(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		b2 := servertest.NewBubble(t)
		lagging(t, b, 0, 0)
		lagging(t, b2, 1, 0)
		links := map[string]*servertest.Link{"10.0.0.1:1": b.NewLink(), "10.0.0.2:1": b2.NewLink()}
		var node atomic.Value
		node.Store("10.0.0.1:1")
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if kind(append([]string{cmd}, args...)) != "renew" {
				return false
			}
			if v, err := b.Redis.Get("foo"); err == nil {
				_ = b2.Redis.Set("foo", v)
				b2.Redis.SetTTL("foo", b.Redis.TTL("foo"))
				b.Redis.Del("foo")
			}
			node.Store("10.0.0.2:1")
			c.WriteError("MOVED 12182 10.0.0.2:1")
			return true
		})
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: node.Load().(string)}}}}, nil
			},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return links[addr].Dial(ctx, network, addr)
			},
			PoolSize:                 400,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) }()
		l := newLocker(t, rdb, holdfast.WithReplicaAcks(1, time.Second))
		lock := acquire(t, l, "foo")
		if v, _ := b2.Redis.Get("foo"); v != holdfast.Owner(lock) {
			t.Errorf("on the new node: %q", v)
		}
		release(t, lock)
		shutdown(t, l)
	})
}
