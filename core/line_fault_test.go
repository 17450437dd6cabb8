package holdfast_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					holder := newReplica(t, b)
					lock := acquire(t, holder.Locker, "k")
					rs, calls := lineUp(t, b, n+2, "k")
					w := watchKey(t, b, "k")
					w.add(lock)
					for _, r := range rs[:n] {
						c.die(r.link)
					}
					time.Sleep(100 * time.Millisecond)
					release(t, lock)
					next, waited := w.get(calls[n])
					if waited > c.limit {
						t.Errorf("the living waited for %v behind the dead", waited)
					}
					for _, r := range rs[:n] { // what was under way arrives
						r.link.Refuse(nil)
						r.link.Heal()
					}
					time.Sleep(5 * time.Second)
					release(t, next)
					if d := w.serve(append(calls[:n], calls[n+1])...); d > 3*time.Second {
						t.Errorf("%v to serve %d waiters who are back", d, n+1)
					}
					w.end()
					empty(t, b, append(rs, holder)...)
				})
			})
		}
	}
}

// The looks of a waiter that hears nothing take effect all the same, and make its first lease a whole one. It gives up
// after the time of a lease, and gives the lock back.
func TestLineOfTheDeaf(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder := newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		rs, calls := lineUp(t, b, 4, "k")
		w := watchKey(t, b, "k")
		w.add(lock)
		deaf := func([]string) servertest.Verdict { return servertest.LoseReplyAndClose }
		for _, r := range rs[:3] {
			r.link.OnCommand(deaf)
			r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.LoseReply })
		}
		time.Sleep(time.Second)
		release(t, lock)
		next, waited := w.get(calls[3])
		if waited > 18*time.Second {
			t.Errorf("the living waited for %v behind the deaf, want one lease and a little", waited)
		}
		for i, r := range rs[:3] {
			wantIs(t, (<-calls[i]).err, holdfast.ErrUnavailable)
			r.link.OnCommand(nil)
		}
		release(t, next)
		w.end()
		empty(t, b, append(rs, holder)...)
	})
}

// A grant that nobody is told of, as messages can be lost, is found by looking.
func TestLostGrantIsFound(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 15 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b, holdfast.WithTTL(ttl))
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 3, "k", holdfast.WithTTL(ttl))
				var lost atomic.Int64
				for _, r := range rs {
					r.link.OnMessage(func(string, string) servertest.Verdict { lost.Add(1); return servertest.LoseReply })
				}
				w := watchKey(t, b, "k")
				w.add(lock)
				release(t, lock)
				if d := w.serve(calls...); d > 3*2*time.Second+time.Second {
					t.Errorf("three waiters got the lock after %v, want a look each", d)
				}
				if n := lost.Load(); n < 3 {
					t.Errorf("%d messages lost", n)
				}
				w.end()
				empty(t, b, append(rs, holder)...)
			})
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
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 2, "k")
				w := watchKey(t, b, "k")
				w.add(lock)
				drop := func() {
					rs[0].link.Refuse(errRefused)
					rs[0].link.Reset()
					time.AfterFunc(c.refuse, func() { rs[0].link.Refuse(nil) })
				}
				if c.after < 0 {
					release(t, lock)
					drop()
				} else {
					drop()
					time.Sleep(c.after)
					release(t, lock)
				}
				if c.next {
					lk, waited := w.get(calls[1])
					if waited > 10*time.Millisecond {
						t.Errorf("the next one waited for %v", waited)
					}
					release(t, lk)
					calls = calls[:1]
				}
				if d := w.serve(calls...); d > c.limit {
					t.Errorf("served after %v", d)
				}
				w.end()
				empty(t, b, append(rs, holder)...)
			})
		})
	}
}

// A server that starts up, or has lost its master, refuses everything for a while, and forgets nobody.
func TestLineWhileTheServerLoads(t *testing.T) {
	for _, text := range []string{"LOADING Redis is loading the dataset in memory", "MASTERDOWN Link with MASTER is down"} {
		for _, reset := range []bool{false, true} {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 3, "k")
				w := watchKey(t, b, "k")
				w.add(lock)
				b.Redis.SetError(text)
				if reset {
					for _, r := range rs {
						r.link.Reset()
					}
				}
				time.AfterFunc(3*time.Second, func() { b.Redis.SetError("") })
				time.Sleep(6 * time.Second) // and a pause before an inbox is opened again
				release(t, lock)
				if d := w.serve(calls...); d > 60*time.Millisecond {
					t.Errorf("three were served in %v, want to be told", d)
				}
				w.end()
				empty(t, b, append(rs, holder)...)
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
				r := <-waiter
				if r.err != nil {
					t.Fatal(r.err)
				}
				if late := time.Since(began) - left; late < 0 || late > 100*time.Millisecond {
					t.Errorf("TTL %v: the next has the lock %v after the end of a lease that had %v left", ttl, late, left)
				}
				if lock.Err() == nil {
					t.Error("two hold it")
				}
				release(t, r.lock)
			})
		}
	}
}
