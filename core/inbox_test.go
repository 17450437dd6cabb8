package holdfast_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Where SUBSCRIBE is refused waiting is polling, and says so; where it is allowed later, grants are pushed again.
func TestRefusedSubscription(t *testing.T) {
	for name, text := range map[string]string{
		"no permission": "NOPERM this user has no permissions to run the 'subscribe' command",
		"a proxy":       "ERR unknown command 'subscribe'",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var told reported
				holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(told.trace()))
				warm(t, r)
				w := watchKey(t, b, "k")
				refuse(b, "subscribe", text)
				for range 2 {
					if d := w.turn(holder, r, 10*time.Second); d > 250*time.Millisecond {
						t.Errorf("polling took %v", d)
					}
				}
				if n := told.count("SUBSCRIBE", text); n != 1 || len(told.all()) != 1 {
					t.Errorf("reported: %v", told.all())
				}
				refuse(b, "", "")
				for range 2 {
					w.turn(holder, r, 10*time.Second)
				}
				if d := w.turn(holder, r, 10*time.Second); d > 0 {
					t.Errorf("%v to be granted the lock when SUBSCRIBE is allowed again", d)
				}
				w.end()
				empty(t, b, holder, r)
			})
		})
	}
}

// A user without PUBLISH can release all the same, and waiters find the free lock by looking.
func TestRefusedPublishing(t *testing.T) {
	for _, name := range []string{"publish", "pubsub"} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, holder *replica) {
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 3, "k")
				w := watchKey(t, b, "k")
				w.add(lock)
				refuse(b, name, "NOPERM this user has no permissions to run the command")
				release(t, lock)
				if d := w.serve(calls...); d > 3*2*time.Second+time.Second {
					t.Errorf("three waiters got the lock after %v, want a look each", d)
				}
				w.end()
				empty(t, b, append(rs, holder)...)
			})
		})
	}
}

// The connection of the inbox says nothing any more, not even that it is closed. Nobody waits longer for it than
// until the next look, and after two pings it is made anew.
func TestSilentInbox(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		rdb := b.Client(func(o *redis.Options) { o.PoolSize = 1 }) // beside the inbox's connection, so that the number is known
		holder, r := newReplica(t, b), &replica{newLocker(t, rdb, holdfast.WithTrace(told.trace())), rdb, b.Link(rdb)}
		openInbox(t, b, r)
		conns := r.link.Conns()
		r.link.OnCommand(every("ping", servertest.LoseReply)) // and all messages after it
		time.Sleep(6 * time.Second)
		w := watchKey(t, b, "k")
		if d := w.turn(holder, r, time.Second); d == 0 || d > 2*time.Second {
			t.Errorf("it waited for %v, want until its next look", d)
		}
		r.link.OnCommand(nil)
		time.Sleep(10 * time.Second)
		if n := told.count("SUBSCRIBE", "silent"); n != 1 {
			t.Errorf("reported: %v", told.all())
		}
		if n := r.link.Conns(); n > conns {
			t.Errorf("%d connections, %d before", n, conns)
		}
		if d := w.turn(holder, r, time.Second); d > 0 {
			t.Errorf("it waited for %v, want to be told", d)
		}
		w.end()
		empty(t, b, holder, r)
	})
}

// Waiting for long costs no more than one command per second for each, all told.
func TestWaitingIsCheap(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 15 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, holder *replica) {
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 5, "k", holdfast.WithTTL(ttl))
				time.Sleep(10 * time.Second)
				b.ResetCommands()
				time.Sleep(100 * time.Second)
				for i, r := range rs {
					if n := r.link.Commands().Total(); n > 100 || n < 40 {
						t.Errorf("waiter %d sent %d commands in 100s: %v", i, n, r.link.Commands())
					}
				}
				w := watchKey(t, b, "k")
				w.add(lock)
				release(t, lock)
				if d := w.serve(calls...); d > 200*time.Millisecond {
					t.Errorf("five were served in %v", d)
				}
				w.end()
				empty(t, b, append(rs, holder)...)
			}, holdfast.WithTTL(ttl))
		})
	}
}

// A server, or something before it, that takes every subscription and closes it at once.
func TestUnsteadySubscription(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if args[0] == "subscribe" {
				time.AfterFunc(5*time.Millisecond, r.link.Reset)
			}
			return servertest.Pass
		})
		c := call(background, r, "k")
		time.Sleep(time.Second)
		r.link.ResetCommands()
		time.Sleep(100 * time.Second)
		if n := r.link.Commands(); n["subscribe"] > 200 || n["subscribe"] < 50 || n.Total() > 1000 {
			t.Errorf("commands in 100s: %v", n)
		}
		release(t, lock)
		release(t, got(t, c))
	})
}

// While nobody waits, nobody tries to make a broken connection again, nor reports it for ever.
func TestInboxThatNobodyNeeds(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(told.trace()))
		openInbox(t, b, r)
		time.Sleep(time.Minute)
		under := holdfast.Under(r.Locker)
		r.link.Refuse(errRefused)
		r.link.Reset()
		time.Sleep(10 * time.Minute)
		if n := told.count("SUBSCRIBE"); n == 0 || n > 10 {
			t.Errorf("%d reports in ten minutes: %v", n, told.all())
		}
		if n := holdfast.Under(r.Locker); n != 0 || under == 0 {
			t.Errorf("%d under way, %d before", n, under)
		}
		r.link.Refuse(nil)
		w := watchKey(t, b, "k")
		if d := w.turn(holder, r, time.Second); d > 0 {
			t.Errorf("it waited for %v, want to be told", d)
		}
		w.end()
		empty(t, b, holder, r)
	})
}

// A client whose Subscribe panics polls.
func TestClientThatCannotSubscribe(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		holder, rdb := newReplica(t, b), b.Client()
		r := &replica{newLocker(t, unsubscribable{rdb}, holdfast.WithTrace(told.trace())), rdb, b.Link(rdb)}
		w := watchKey(t, b, "k")
		if d := w.turn(holder, r, 10*time.Second); d > 250*time.Millisecond {
			t.Errorf("polling took %v", d)
		}
		if n := told.count("SUBSCRIBE", "at least one channel"); n != 1 {
			t.Errorf("reported: %v", told.all())
		}
		w.end()
		empty(t, b, holder, r)
	})
}

// Messages that are none, or for nobody.
func TestStrangeMessages(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		c := call(background, r, "k")
		channels := b.Redis.PubSubChannels("")
		if len(channels) != 1 {
			t.Fatalf("channels %v", channels)
		}
		theirs := acquire(t, holder.Locker, "other")
		waits, _ := b.Redis.HKeys("{k}:~wait")
		for _, text := range []string{
			"", " ", "a b c d", "a 1 b k", "a b 1 k", "a 1 1 ", "a 1 1 {}k", "a 1 1 k\x00", "a -1 -1 k", "a 1 1 k:~fence",
			"a 99999999999999999999 1 k", strings.Repeat("x", 100_000), "a 1 1 " + strings.Repeat("k", 600),
			"nobody 1 1 k", "nobody 1 1 other", "nobody 1 1 elsewhere",
			waits[0] + " 0 0 k", waits[0] + " 1 9223372036854775807 k", waits[0] + " 9223372036854775807 -9223372036854775808 k",
			waits[0] + " 9223372036854775807 1 k",
		} {
			b.Redis.Publish(channels[0], strings.ReplaceAll(text, " ", "\n"))
			synctest.Wait()
			notYet(t, c)
		}
		time.Sleep(time.Second)
		notLate(t, b, lock)
		notLate(t, b, theirs)
		release(t, theirs)
		release(t, lock)
		release(t, got(t, c))
	})
}

// Shutdown at any moment of an inbox's life: while it connects, subscribes, is told, breaks and pauses.
func TestShutdownOfAnInbox(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*servertest.Link){
		"healthy":            func(*servertest.Link) {},
		"slow":               func(l *servertest.Link) { l.Delay(40 * time.Millisecond) },
		"refused":            func(l *servertest.Link) { time.Sleep(50 * time.Millisecond); l.Refuse(errRefused); l.Reset() },
		"reset":              func(l *servertest.Link) { l.Delay(5 * time.Millisecond); time.AfterFunc(70*time.Millisecond, l.Reset) },
		"no answer":          func(l *servertest.Link) { l.OnCommand(every("subscribe", servertest.LoseReply)) },
		"closed at once":     func(l *servertest.Link) { l.OnCommand(every("subscribe", servertest.LoseReplyAndClose)) },
		"hung":               func(l *servertest.Link) { time.Sleep(50 * time.Millisecond); l.CutDown() },
		"hung while dialing": func(l *servertest.Link) { l.CutUp() },
	} {
		for at := time.Duration(0); at < 300*time.Millisecond; at += 31 * time.Millisecond {
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					holder, r := newReplica(t, b), newReplica(t, b)
					holdfast.ByLanes(r.Locker)
					warm(t, r)
					lock := acquire(t, holder.Locker, "k")
					begin := time.Now()
					go fault(r.link)
					c := call(background, r, "k")
					time.AfterFunc(200*time.Millisecond, func() { release(t, lock) })
					time.Sleep(at - time.Since(begin))
					down := make(chan error, 1)
					go func() { down <- r.Shutdown(background) }()
					res := <-c
					if res.lock != nil { // the grant was faster
						r.link.Refuse(nil)
						r.link.Heal()
						release(t, res.lock)
					} else {
						wantIs(t, res.err, holdfast.ErrClosed)
					}
					if d := time.Since(begin) - at; d > 80*time.Millisecond {
						t.Errorf("the waiter was told after %v", d)
					}
					time.Sleep(5 * time.Second)
					r.link.OnCommand(nil)
					r.link.Refuse(nil)
					r.link.Heal()
					fine(t, <-down)
					synctest.Wait()
					if n := holdfast.Under(r.Locker); n != 0 {
						t.Errorf("%d under way", n)
					}
					time.Sleep(time.Second)
					release(t, acquire(t, holder.Locker, "k"))
					empty(t, b, holder)
				})
			})
		}
	}
}

// The client is closed under waiters: they are told, and nothing stays.
func TestClientClosedUnderAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		time.Sleep(time.Second)
		_ = r.rdb.Close()
		begin := time.Now()
		wantIs(t, (<-c).err, holdfast.ErrUnavailable)
		lasted(t, begin, 0, 2*time.Second)
		time.Sleep(30 * time.Second)
		shutdown(t, r.Locker)
		release(t, lock)
		release(t, acquire(t, holder.Locker, "k"))
		empty(t, b, holder)
	})
}

// Some managed services let no script PUBLISH. A lock is granted to nobody that could not be told: it stays free, and the
// line as it is. From the second hand-over on waiters look by themselves, at the pace of polling, and each Locker says
// once why that is slower.
func TestNoScriptMayPublish(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			refuse(b, "publish", "ERR This Redis command is not allowed from script")
			var told [4]reported
			var rs []*replica
			for i := range told {
				rdb := b.Client()
				var client redis.UniversalClient = rdb
				if cluster {
					client = opaque{rdb}
				}
				rs = append(rs, &replica{newLocker(t, client, holdfast.WithTrace(told[i].trace())), rdb, b.Link(rdb)})
			}
			w := watchKey(t, b, "k")
			for round := range 5 {
				lock := got(t, call(background, rs[0], "k"))
				w.add(lock)
				var calls []<-chan result
				for _, r := range rs[1:] {
					calls = append(calls, call(background, r, "k"))
					time.Sleep(300 * time.Millisecond) // until each of them is in line
				}
				time.Sleep(5 * time.Second)
				release(t, lock)
				if round == 0 {
					unheld(t, b, "k") // granted to no waiter that does not know
					if d := w.serve(calls...); d > 3*2*time.Second {
						t.Errorf("three got it after %v, want a look each", d)
					}
					continue
				}
				for i, c := range calls { // within ten minutes of the refusal
					lock, waited := w.get(c)
					if waited > 270*time.Millisecond {
						t.Errorf("round %d: waiter %d got it after %v", round, i, waited)
					}
					release(t, lock)
				}
			}
			for i := range told {
				if n := told[i].count("PUBLISH"); i > 0 && n != 1 || len(told[i].all()) != n {
					t.Errorf("Locker %d reported: %v", i, told[i].all())
				}
			}
			w.end()
			refuse(b, "", "")
			// Allowed again: that is noticed.
			time.Sleep(11 * time.Minute)
			w = watchKey(t, b, "k")
			for range 3 {
				w.turn(rs[0], rs[1], time.Second)
			}
			if d := w.turn(rs[0], rs[1], time.Second); d > 0 {
				t.Errorf("%v to be told when scripts may publish again", d)
			}
			w.end()
			empty(t, b, rs...)
		})
	}
}

// refuse has the server answer the commands of one name with an error, from now on; "" as the error ends that.
func refuse(b *servertest.Bubble, name, text string) {
	b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if text == "" || !strings.EqualFold(cmd, name) {
			return false
		}
		c.WriteError(text)
		return true
	})
}

// unsubscribable is a client of the user's own making, around a [redis.Ring] say, which panics like that.
type unsubscribable struct{ redis.UniversalClient }

func (unsubscribable) Subscribe(context.Context, ...string) *redis.PubSub {
	panic("at least one channel is required")
}
