package holdfast_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Locks that come by a message: how long they last, and when the message cannot be relied on.

// A granted lock begins with a short lease and goes on like any other. At no moment is its deadline past the lease,
// over links that take their time in either direction, whatever the label is, with which the message begins.
func TestDeadlineOfAGrant(t *testing.T) {
	t.Parallel()
	delays := map[string]func(*servertest.Link, time.Duration){
		"fast":          func(*servertest.Link, time.Duration) {},
		"slow requests": (*servertest.Link).DelayUp,
		"slow replies":  (*servertest.Link).DelayDown,
		"slow":          func(l *servertest.Link, d time.Duration) { l.Delay(d / 2) },
	}
	for name, delay := range delays {
		for label, ttl := range map[string]time.Duration{"": time.Second, "1 2 k": 3 * time.Second, " ": 15 * time.Second, "Größe · 7": 3 * time.Minute} {
			t.Run(name+"/"+ttl.String(), func(t *testing.T) {
				granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
					delay(r.link, min(ttl/6, 400*time.Millisecond))
					w := watchKey(t, b, "k")
					w.add(lock)
					c := call(background, r, "k")
					time.Sleep(7 * time.Second)
					r.link.ResetCommands()
					for r.link.Commands()["evalsha"] == 0 { // the next look
						time.Sleep(10 * time.Millisecond)
					}
					time.Sleep(time.Second)
					r.link.ResetCommands()
					release(t, lock)
					granted, _ := w.get(c)
					if n := r.link.Commands()["evalsha"]; n != 0 {
						t.Errorf("%d commands to be granted the lock", n)
					}
					if d := time.Until(granted.Deadline()); d > min(ttl, 3*time.Second) {
						t.Errorf("held for %v, the first lease is 3s", d)
					}
					time.Sleep(2 * time.Second)
					if ttl > 10*time.Second && b.Redis.TTL("k") < ttl-5*time.Second {
						t.Errorf("after two seconds redis has it for another %v, it should be a whole lease", b.Redis.TTL("k"))
					}
					time.Sleep(20 * time.Second)
					fine(t, granted.Err(), "lost on a healthy link")
					release(t, granted)
					w.end()
					r.link.Delay(0)
				}, holdfast.WithTTL(ttl), holdfast.WithLabel(label))
			})
		}
	}
}

// Without renewal, the short lease becomes a whole one, once; with a bound, that counts from the grant.
func TestGrantWithOtherLeases(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []holdfast.CallOption
		fail int64         // how many renewals fail at first
		held time.Duration // for at least, and no more than 3 s longer
	}{
		{"without renewal", []holdfast.CallOption{holdfast.WithoutRenewal()}, 0, 14 * time.Second},
		{"without renewal, at the third try", []holdfast.CallOption{holdfast.WithoutRenewal()}, 2, 14 * time.Second},
		{"without renewal, shorter than a first lease", []holdfast.CallOption{holdfast.WithoutRenewal(), holdfast.WithTTL(time.Second)}, 0, 900 * time.Millisecond},
		{"bounded", []holdfast.CallOption{holdfast.WithMaxHold(20 * time.Second)}, 0, 19 * time.Second},
		{"bounded by the lease", []holdfast.CallOption{holdfast.WithMaxHold(15 * time.Second)}, 0, 14 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
				w := watchKey(t, b, "k")
				w.add(lock)
				waits := call(background, r, "k", c.opts...)
				time.Sleep(1500 * time.Millisecond)
				var n atomic.Int64
				r.link.OnCommand(func(args []string) servertest.Verdict {
					if kind(args) == "renew" && n.Add(1) <= c.fail {
						return servertest.LoseReplyAndClose
					}
					return servertest.Pass
				})
				release(t, lock)
				granted, _ := w.get(waits)
				begin := time.Now()
				<-granted.Context(background).Done()
				lasted(t, begin, c.held, 3*time.Second)
				wantIs(t, granted.Release(background), holdfast.ErrLost)
				w.end()
			})
		})
	}
}

// The message overtakes the reply of the command that joined the line.
func TestGrantBeforeTheReplyThatJoined(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		holdfast.ByLanes(r.Locker)
		openInbox(t, b, r)
		w := watchKey(t, b, "k")
		w.add(lock)
		until := make(chan struct{})
		var told atomic.Int64
		r.link.OnCommand(first("acquire", servertest.HoldReply(until)))
		r.link.OnMessage(func(string, string) servertest.Verdict { told.Add(1); return servertest.Pass })
		c := call(background, r, "k")
		time.Sleep(200 * time.Millisecond)
		release(t, lock)
		time.Sleep(200 * time.Millisecond)
		if n := told.Load(); n != 1 {
			t.Fatalf("%d messages", n)
		}
		notYet(t, c)
		r.link.ResetCommands()
		close(until)
		granted, waited := w.get(c)
		if n := r.link.Commands().Total(); waited > 0 || n != 0 {
			t.Errorf("it took %v and %d commands more", waited, n)
		}
		time.Sleep(time.Minute)
		release(t, granted)
		w.end()
	})
}

// The waiter does not get through to Redis, only the message comes, late: as long as it can be relied on it makes a
// lock, and not once the first lease is over, though another holder may have the lock by then.
func TestLateGrant(t *testing.T) {
	for _, c := range []struct {
		late  time.Duration
		other bool // takes the lock when the first lease is over
		lock  bool
	}{
		{2700 * time.Millisecond, false, true},
		{2900 * time.Millisecond, false, false},
		{3100 * time.Millisecond, false, false},
		{3100 * time.Millisecond, true, false},
		{10 * time.Second, true, false},
	} {
		t.Run(fmt.Sprint(c.late, c.other), func(t *testing.T) {
			granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
				waits := call(background, r, "k")
				time.Sleep(1500 * time.Millisecond)
				w := watchKey(t, b, "k")
				w.add(lock)
				until := make(chan struct{})
				r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(until) })
				r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequestAndClose })
				release(t, lock)
				over := time.Now().Add(c.late)
				if c.other {
					time.Sleep(3 * time.Second)
					lock = acquire(t, holder.Locker, "k")
					w.add(lock)
				}
				time.Sleep(time.Until(over))
				close(until)
				synctest.Wait()
				if c.lock {
					granted, waited := w.get(waits)
					if waited > 0 {
						t.Errorf("it waited for another %v", waited)
					}
					<-granted.Context(background).Done() // it cannot renew it
					r.link.OnCommand(nil)
					r.link.Reset()
					wantIs(t, granted.Release(background), holdfast.ErrLost)
				} else {
					notYet(t, waits)
					r.link.OnCommand(nil)
					r.link.OnMessage(nil)
					r.link.Reset()
					time.Sleep(2 * time.Second)
					if c.other {
						notYet(t, waits)
						release(t, lock)
					}
					w.serve(waits)
				}
				w.end()
			})
		})
	}
}

// A grant that comes again, at any later moment, makes no second lock and takes none away.
func TestGrantThatComesTwice(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		type message struct{ channel, text string }
		var latest atomic.Pointer[message]
		r.link.OnMessage(func(c, p string) servertest.Verdict { latest.Store(&message{c, p}); return servertest.Pass })
		again := func() {
			t.Helper()
			m := latest.Load()
			for range 3 {
				if b.Redis.Publish(m.channel, m.text) != 1 {
					t.Error("nobody listens any more")
				}
			}
			synctest.Wait()
		}
		w := watchKey(t, b, "k")
		w.add(lock)
		c := call(background, r, "k")
		release(t, lock)
		granted, _ := w.get(c)
		first := latest.Load()
		again() // while it is held
		time.Sleep(5 * time.Second)
		again()
		release(t, granted)
		again() // when it was released
		time.Sleep(time.Second)

		lock = acquire(t, holder.Locker, "k")
		w.add(lock)
		again() // and somebody else has it
		c = call(background, r, "k")
		again() // or stands in line with another tenure
		time.Sleep(2 * time.Second)
		notYet(t, c)
		release(t, lock)
		granted, waited := w.get(c)
		if waited > 0 {
			t.Errorf("it waited for %v", waited)
		}
		latest.Store(first)
		again()
		time.Sleep(time.Minute)
		release(t, granted)
		w.end()
	})
}

// The same tenure is granted the lock, does not notice, loses it and stands in line again. The old message makes
// nothing, not even where Redis has forgotten which tokens there were.
func TestGrantOfBefore(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		t.Run(fmt.Sprint("forgotten ", forgotten), func(t *testing.T) {
			granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
				c := call(background, r, "k")
				time.Sleep(1500 * time.Millisecond)
				until := make(chan struct{})
				r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(until) })
				release(t, lock)
				b.Redis.Del("k")
				_ = b.Redis.Set("k", "theirs")
				if forgotten {
					b.Redis.Del("{k}:~fence")
				}
				time.Sleep(2 * time.Second) // it has looked
				if inLine(t, b) != 1 {
					t.Fatal("it is not in line again")
				}
				close(until)
				notYet(t, c)
				r.link.OnMessage(nil)
				b.Redis.Del("k")
				w := watchKey(t, b, "k")
				w.serve(c)
				w.end()
			})
		})
	}
}

// The server's clock is set between the waiter's look and the grant. The deadline is never past the lease.
func TestGrantAfterTheServersClockWasSet(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, -4 * time.Second, -time.Second, -100 * time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Second} {
		t.Run(step.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder, r := newReplica(t, b), newReplica(t, b)
				warm(t, r)
				b.Skew(0)
				lock := acquire(t, holder.Locker, "k", holdfast.WithTTL(time.Minute))
				c := call(background, r, "k")
				time.Sleep(1500 * time.Millisecond)
				b.Skew(step)
				time.Sleep(50 * time.Millisecond)
				r.link.DelayDown(300 * time.Millisecond)
				release(t, lock)
				granted := got(t, c)
				for range 10_000 {
					b.Skew(step) // the time goes on
					value, _ := b.Redis.Get("k")
					if late := time.Until(granted.Deadline()) - b.Redis.TTL("k"); late > 0 || value != holdfast.Owner(granted) {
						t.Fatalf("the deadline is %v later than the lease of %q", late, value)
					}
					time.Sleep(time.Millisecond)
				}
				fine(t, granted.Err(), "lost")
				release(t, granted)
				shutdown(t, holder.Locker)
				shutdown(t, r.Locker)
			})
		})
	}
}

// The waiter's machine is suspended, before or while the message is on its way: the lock is not taken on trust.
func TestGrantAfterASuspension(t *testing.T) {
	for _, rival := range []bool{false, true} {
		for _, skew := range []time.Duration{2900 * time.Millisecond, time.Minute, -time.Minute} {
			t.Run(fmt.Sprint(skew, " rival ", rival), func(t *testing.T) {
				granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
					c := call(background, r, "k")
					time.Sleep(500 * time.Millisecond)
					r.link.DelayDown(10 * time.Millisecond)
					release(t, lock)
					holdfast.SkewWall(r.Locker, skew)
					if rival { // the first lease is over by the server's clock
						b.Redis.Del("k")
						theirs := acquire(t, holder.Locker, "k")
						time.Sleep(time.Second)
						if skew > 0 {
							notYet(t, c)
						}
						release(t, theirs)
					}
					granted := got(t, c)
					if err := granted.Err(); err != nil && skew > 0 {
						t.Errorf("handed out, and lost: %v", err)
					}
					_ = granted.Release(background)
				})
			})
		}
	}
}

// A grant that is heard of when its lease is over: the lock that the look then gets has the token that Redis gave it.
func TestGrantAfterItsLeaseLeavesNoToken(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		openInbox(t, b, r)
		late := make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(late) })
		one := call(background, r, "k", holdfast.WithTTL(200*time.Millisecond))
		release(t, lock)
		missed := inspect(t, holder.Locker, "k")
		time.Sleep(300 * time.Millisecond)
		close(late)
		held := got(t, one)
		if now := inspect(t, holder.Locker, "k"); missed.Token <= lock.Token() || held.Token() != now.Token || held.Token() <= missed.Token {
			t.Errorf("token %d after %d and %d, want %d", held.Token(), lock.Token(), missed.Token, now.Token)
		}
		release(t, held)
	})
}

// granting is for a process that holds k and one that comes to wait for it. Nothing is left of either in the end.
func granting(t *testing.T, fn func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock), opts ...holdfast.Option) {
	t.Helper()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b, opts...)
		warm(t, r)
		fn(t, b, holder, r, acquire(t, holder.Locker, "k"))
		empty(t, b, holder, r)
	})
}
