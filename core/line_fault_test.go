package holdfast_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Waiters that are dead when it is their turn cost nothing where Redis knows that they are gone, and where it does
// not a first lease each until they count as dead. What they are sent makes no lock of theirs, however late.
func TestLineOfTheDead(t *testing.T) {
	for _, c := range []struct {
		name  string
		die   func(*servertest.Link)
		limit time.Duration
	}{
		{"gone", func(l *servertest.Link) { l.Refuse(errRefused); l.Reset() }, 10 * time.Millisecond},
		{"silent", func(l *servertest.Link) { l.CutUp(); l.CutDown() }, 7 * time.Second},
	} {
		for _, n := range []int{1, 5} {
			t.Run(fmt.Sprint(n, " ", c.name), func(t *testing.T) {
				inQueue(t, n+2, func(t *testing.T, b *servertest.Bubble, q *queued) {
					for _, r := range q.rs[:n] {
						c.die(r.link)
					}
					time.Sleep(100 * time.Millisecond)
					release(t, q.lock)
					next, waited := q.get(q.calls[n])
					if waited > c.limit {
						t.Errorf("the living waited for %v behind the dead", waited)
					}
					for _, r := range q.rs[:n] { // what was under way arrives
						r.link.Refuse(nil)
						r.link.Heal()
					}
					time.Sleep(5 * time.Second)
					release(t, next)
					if d := q.serve(append(q.calls[:n], q.calls[n+1])...); d > 3*time.Second {
						t.Errorf("%v to serve %d waiters who are back", d, n+1)
					}
				})
			})
		}
	}
}

// The looks of a waiter that hears nothing take effect all the same, and make its first lease a whole one. It gives up
// after the time of a lease, and gives the lock back.
func TestLineOfTheDeaf(t *testing.T) {
	inQueue(t, 4, func(t *testing.T, b *servertest.Bubble, q *queued) {
		for _, r := range q.rs[:3] {
			r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseReplyAndClose })
			r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.LoseReply })
		}
		time.Sleep(time.Second)
		release(t, q.lock)
		next, waited := q.get(q.calls[3])
		if waited > 18*time.Second {
			t.Errorf("the living waited for %v behind the deaf, want one lease and a little", waited)
		}
		for i, r := range q.rs[:3] {
			wantIs(t, (<-q.calls[i]).err, holdfast.ErrUnavailable)
			r.link.OnCommand(nil)
		}
		release(t, next)
	})
}

// A grant that nobody is told of, as messages can be lost, is found by looking.
func TestLostGrantIsFound(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 15 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			inQueue(t, 3, func(t *testing.T, b *servertest.Bubble, q *queued) {
				var lost atomic.Int64
				for _, r := range q.rs {
					r.link.OnMessage(func(string, string) servertest.Verdict { lost.Add(1); return servertest.LoseReply })
				}
				release(t, q.lock)
				if d := q.serve(q.calls...); d > 3*2*time.Second+time.Second || lost.Load() < 3 {
					t.Errorf("three waiters got the lock after %v, want a look each; %d messages were lost", d, lost.Load())
				}
			}, holdfast.WithTTL(ttl))
		})
	}
}

// The connection of an inbox breaks, for a moment or for long, and the lock is released meanwhile.
func TestLineOverABrokenConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		refuse time.Duration // how long no other can be made
		after  time.Duration // the release comes
		limit  time.Duration // until both were served
		next   bool          // the one behind it has to be served first
	}{
		{"the release first", 0, -1, 350 * time.Millisecond, false},
		{"at once", 0, 0, 350 * time.Millisecond, false},
		{"while there is none", time.Second, 500 * time.Millisecond, 3 * time.Second, true},
		{"a little later", time.Second, 3 * time.Second, 40 * time.Millisecond, false},
		{"for longer than a place is kept", 8 * time.Second, 7 * time.Second, 5 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inQueue(t, 2, func(t *testing.T, b *servertest.Bubble, q *queued) {
				link, calls := q.rs[0].link, q.calls
				if c.after < 0 {
					release(t, q.lock)
				}
				link.Refuse(errRefused)
				link.Reset()
				time.AfterFunc(c.refuse, func() { link.Refuse(nil) })
				if c.after >= 0 {
					time.Sleep(c.after)
					release(t, q.lock)
				}
				if c.next {
					lk, waited := q.get(calls[1])
					if waited > 10*time.Millisecond {
						t.Errorf("the next one waited for %v", waited)
					}
					release(t, lk)
					calls = calls[:1]
				}
				if d := q.serve(calls...); d > c.limit {
					t.Errorf("served after %v", d)
				}
			})
		})
	}
}

// A server that starts up, or has lost its master, refuses everything for a while, and forgets nobody.
func TestLineWhileTheServerLoads(t *testing.T) {
	for _, text := range []string{"LOADING Redis is loading the dataset in memory", "MASTERDOWN Link with MASTER is down"} {
		for _, reset := range []bool{false, true} {
			inQueue(t, 3, func(t *testing.T, b *servertest.Bubble, q *queued) {
				b.Redis.SetError(text)
				if reset {
					for _, r := range q.rs {
						r.link.Reset()
					}
				}
				time.AfterFunc(3*time.Second, func() { b.Redis.SetError("") })
				time.Sleep(6 * time.Second) // and a pause before an inbox is opened again
				release(t, q.lock)
				if d := q.serve(q.calls...); d > 60*time.Millisecond {
					t.Errorf("three were served in %v, want to be told", d)
				}
			})
		}
	}
}

// A holder that renewed for a while dies. The first in line looks when the lease ends, wherever in it that was, and has the
// lock then: it does not go on at its pace of looks, which is more than a second.
func TestNextAfterACrash(t *testing.T) {
	for _, ttl := range []time.Duration{3 * time.Second, 5 * time.Second, 30 * time.Second} {
		for part := range 5 {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder, next := newReplica(t, b, holdfast.WithTTL(ttl)), newReplica(t, b, holdfast.WithTTL(ttl))
				lock := acquire(t, holder.Locker, "k")
				waiter := call(background, next, "k")
				time.Sleep(2*ttl + ttl/3*time.Duration(2*part+1)/10) // between two renewals
				holder.link.CutUp()
				holder.link.CutDown()
				left := b.Redis.TTL("k")
				began := time.Now()
				then := got(t, waiter)
				if late := time.Since(began) - left; late < 0 || late > 100*time.Millisecond {
					t.Errorf("TTL %v: the next has the lock %v after the end of a lease that had %v left", ttl, late, left)
				}
				if lock.Err() == nil {
					t.Error("two hold it")
				}
				release(t, then)
			})
		}
	}
}

// Somebody listens to all channels, and counts among the receivers of every message. A waiter that is gone is passed
// over all the same, and nothing is published to it that will not be true.
func TestWaiterWhoIsPassedOverIsToldNothing(t *testing.T) {
	inQueue(t, 2, func(t *testing.T, b *servertest.Bubble, q *queued) {
		all := b.Client().PSubscribe(background, "*")
		defer all.Close()
		_, err := all.Receive(background)
		must(t, err)
		link := q.rs[0].link
		link.Refuse(errRefused)
		link.Reset()
		time.Sleep(10 * time.Millisecond)
		release(t, q.lock)
		next, waited := q.get(q.calls[1])
		if waited > 0 {
			t.Errorf("the living waited for %v", waited)
		}
		for range 2 {
			ctx, cancel := context.WithTimeout(background, time.Second)
			msg, err := all.ReceiveMessage(ctx)
			cancel()
			if err != nil {
				break
			}
			if !strings.Contains(msg.Payload, holdfast.Owner(next)) {
				t.Errorf("published, and not true: %q", msg.Payload)
			}
		}
		release(t, next)
		link.Refuse(nil)
		q.serve(q.calls[0])
	})
}

// A subscription that is taken and leads nowhere, at a server other than that of the lock, say. The waiter is not
// passed over for ever: it has its turn, and finds that by looking.
func TestWaiterOutOfReachHasItsTurn(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
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
		lock := acquire(t, r.Locker, "else")
		openInbox(t, b, r)
		release(t, lock)
		b.Redis.Server().SetPreHook(nil)

		ctx, cancel := context.WithCancel(background)
		t.Cleanup(cancel)
		var busy []*replica
		var all sync.WaitGroup
		for range 3 {
			p := newReplica(t, b)
			busy = append(busy, p)
			all.Go(func() {
				for ctx.Err() == nil {
					fine(t, p.Do(background, "k", func(context.Context) error { time.Sleep(50 * time.Millisecond); return nil }))
				}
			})
		}
		time.Sleep(10 * time.Second)
		for range 5 {
			c := call(background, r, "k")
			begin := time.Now()
			lock := got(t, c)
			atMost(t, begin, 4*time.Second)
			notLate(t, b, lock)
			release(t, lock)
		}
		cancel()
		all.Wait()
		empty(t, b, append(busy, r)...)
	})
}

// There waiters that are gone cost a first lease each, until they count as dead.
func TestLineOfTheDeadInACluster(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder := newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		var rs []*replica
		var calls []<-chan result
		for range 5 {
			rdb := b.Client()
			r := &replica{newLocker(t, opaque{rdb}), rdb, b.Link(rdb)}
			rs, calls = append(rs, r), append(calls, call(background, r, "k"))
			time.Sleep(20 * time.Millisecond)
		}
		w := watchKey(t, b, "k")
		w.add(lock)
		for _, r := range rs[:4] {
			r.link.Refuse(errRefused)
			r.link.Reset()
		}
		time.Sleep(10 * time.Millisecond)
		release(t, lock)
		next, waited := w.get(calls[4])
		if waited < 2*time.Second || waited > 7*time.Second {
			t.Errorf("the living waited for %v", waited)
		}
		for _, r := range rs[:4] {
			r.link.Refuse(nil)
		}
		time.Sleep(time.Second)
		release(t, next)
		w.serve(calls[:4]...)
		w.end()
		empty(t, b, append(rs, holder)...)
	})
}
