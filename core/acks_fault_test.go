package holdfast_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// What can become of the renewal and the WAIT on their way.
func TestWaitForAcksUnderFaults(t *testing.T) {
	const within, ttl = 1500 * time.Millisecond, 8 * time.Second // within and a second is less than the 3 s for which go-redis reads
	once := func(name string, v servertest.Verdict) func(*servertest.Link, *servertest.Bubble) {
		return func(l *servertest.Link, _ *servertest.Bubble) {
			l.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) == name || args[0] == name {
					l.OnCommand(nil)
					return v
				}
				return servertest.Pass
			})
		}
	}
	for name, test := range map[string]struct {
		do    func(*servertest.Link, *servertest.Bubble)
		cause string        // "" for a lock
		took  time.Duration // at most
	}{
		"renewal refused, connection gone": {once("renew", servertest.LoseRequestAndClose), "", time.Second},
		"renewal unanswered, closed":       {once("renew", servertest.LoseReplyAndClose), "", time.Second},
		"WAIT unanswered, closed":          {once("wait", servertest.LoseReplyAndClose), "", time.Second},
		"renewal lost":                     {once("renew", servertest.LoseRequest), "no answer in time", within + time.Second},
		"WAIT lost":                        {once("wait", servertest.LoseRequest), "no answer in time", within + time.Second},
		"WAIT unanswered":                  {once("wait", servertest.LoseReply), "no answer in time", within + time.Second},
		"taken away in between": {func(l *servertest.Link, b *servertest.Bubble) {
			l.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) == "renew" {
					b.Redis.Del("k")
				}
				return servertest.Pass
			})
		}, "no longer ours in Redis", 0},
		"given to somebody else in between": {func(l *servertest.Link, b *servertest.Bubble) {
			l.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) == "renew" {
					_ = b.Redis.Set("k", "a rival's")
				}
				return servertest.Pass
			})
		}, "no longer ours in Redis", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				lagging(t, b, 1, 10*time.Millisecond)
				r := newReplica(t, b, holdfast.WithTTL(ttl))
				warm(t, r)
				test.do(r.link, b)
				begin := time.Now()
				lock, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(1, within))
				if got := time.Since(begin); got > test.took+20*time.Millisecond {
					t.Errorf("took %v, want at most %v", got, test.took)
				}
				r.link.OnCommand(nil)
				if test.cause == "" {
					if err != nil {
						t.Fatal(err)
					}
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

// A refusal for good is not asked for again.
func TestRefusedWaitFailsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 0, 0)
		r := newReplica(t, b)
		reply := "NOPERM this user has no permissions to run the 'wait' command"
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "WAIT" {
				c.WriteError(reply)
			}
			return cmd == "WAIT"
		})
		begin := time.Now()
		_, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(1, 10*time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "NOPERM") || time.Since(begin) != 0 || b.Commands()["wait"] != 1 {
			t.Errorf("got %v after %v and %v", err, time.Since(begin), b.Commands())
		}
		reply = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
		_, err = r.Acquire(background, "k", holdfast.WithReplicaAcks(1, 2*time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		if got := time.Since(begin); !contains(err, "UNBLOCKED") || got != 3*time.Second {
			t.Errorf("got %v after %v, want it to be tried for 2s and a second of patience", err, got)
		}
		synctest.Wait()
		if n := b.Commands()["wait"]; b.Redis.Exists("k") || n < 4 || n > 20 {
			t.Errorf("%d times WAIT; key there: %v", n, b.Redis.Exists("k"))
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
				slow := make(chan struct{})
				time.AfterFunc(1000*time.Millisecond, func() { close(slow) })
				return servertest.HoldReply(slow)
			}
			return servertest.Pass
		})
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
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

// A grant that is too old when its answer comes is not confirmed any more.
func TestLateGrantAsksForNoAcks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 0)
		r := newReplica(t, b, holdfast.WithReplicaAcks(1, time.Second))
		lease := 15*time.Second - holdfast.Margin(15*time.Second)
		if holdfast.JudgeLate(background, r.Locker, "k", lease) {
			t.Error("a lock past its lease")
		}
		if n := b.Commands()["wait"]; n != 0 {
			t.Errorf("%d times WAIT for it", n)
		}
		if !holdfast.JudgeLate(background, r.Locker, "k2", lease-time.Millisecond) {
			t.Error("no lock within its lease")
		}
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
		var moved atomic.Bool
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if kind(append([]string{cmd}, args...)) != "renew" {
				return false
			}
			if v, err := b.Redis.Get("foo"); err == nil {
				_ = b2.Redis.Set("foo", v)
				b2.Redis.SetTTL("foo", b.Redis.TTL("foo"))
				b.Redis.Del("foo")
			}
			moved.Store(true)
			c.WriteError("MOVED 12182 10.0.0.2:1")
			return true
		})
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				addr := "10.0.0.1:1"
				if moved.Load() {
					addr = "10.0.0.2:1"
				}
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
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
