package holdfast_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// First come, first served, with two commands for each and one push; larger tokens each time.
func TestLineOfProcesses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 16, 128} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				rs, locks := waiters(t, b, n, "k")
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				s, err := holder.Inspect(background, "k")
				if err != nil || s.Waiting != n {
					t.Fatalf("%+v, %v: want %d waiting", s, err, n)
				}
				var pushes atomic.Int64
				for _, r := range rs {
					r.link.OnMessage(func(string, string) servertest.Verdict {
						pushes.Add(1)
						return servertest.Pass
					})
				}
				b.ResetCommands()
				token := lock.Token()
				release(t, lock)
				for i := range n {
					lock := <-locks[i]
					if lock.Token() <= token {
						t.Errorf("token %d after %d", lock.Token(), token)
					}
					token = lock.Token()
					time.Sleep(time.Millisecond)
					release(t, lock)
				}
				if got := b.Commands(); got["evalsha"] != int64(n+1) || got.Total() != int64(n+1) {
					t.Errorf("%d commands to hand over %d times: %v", got.Total(), n, got)
				}
				if got := pushes.Load(); got != int64(n) {
					t.Errorf("%d pushes to hand over %d times", got, n)
				}
				for _, r := range append(rs, holder) {
					shutdown(t, r.Locker)
				}
				time.Sleep(2 * time.Minute)
				if keys := b.Redis.Keys(); len(keys) != 0 {
					t.Errorf("left behind: %v", keys)
				}
			})
		})
	}
}

// What those in line do about holders that tell them nothing.

// A holder dies, one after the other: each costs its lease and no more.
func TestLineBehindDeadHolders(t *testing.T) {
	const lease = 4 * time.Second
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder := newReplica(t, b, holdfast.WithTTL(lease))
		lock := acquire(t, holder.Locker, "k")
		rs, calls := lineUp(t, b, 4, "k", holdfast.WithTTL(lease))
		w := watchKey(t, b, "k")
		w.add(lock)
		dead := holder
		for i, c := range calls {
			time.Sleep(time.Second)
			dead.link.CutUp()
			dead.link.CutDown()
			next, waited := w.get(c)
			if waited > lease+1500*time.Millisecond {
				t.Errorf("the waiter %d waited for %v, the lease is %v", i, waited, lease)
			}
			wantIs(t, lock.Err(), holdfast.ErrLost)
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			dead, lock = rs[i], next
		}
		for _, r := range append(rs, holder) {
			r.link.Heal()
		}
		time.Sleep(10 * time.Second) // what was under way touches nobody's lock
		release(t, lock)
		w.end()
		empty(t, b, append(rs, holder)...)
	})
}

// Somebody else's program has the key, and deletes it or not. It tells nobody.
func TestLineBehindAForeignHolder(t *testing.T) {
	for _, c := range []struct {
		name   string
		fence  bool          // there were locks of ours before
		ttl    time.Duration // 0: none
		del    time.Duration // 0: never
		within time.Duration
	}{
		{"that expires", false, 4 * time.Second, 0, 50 * time.Millisecond},
		{"that expires, after one of ours", true, 4 * time.Second, 0, 50 * time.Millisecond},
		{"that is freed", false, time.Minute, 5 * time.Second, 2 * time.Second},
		{"that is freed, after one of ours", true, time.Minute, 5 * time.Second, 260 * time.Millisecond},
		{"without expiry", false, 0, 5 * time.Second, 2 * time.Second},
		{"without expiry, after one of ours", true, 0, 5 * time.Second, 260 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				if c.fence {
					r := newReplica(t, b)
					release(t, acquire(t, r.Locker, "k"))
					shutdown(t, r.Locker)
				}
				_ = b.Redis.Set("k", "theirs")
				if c.ttl > 0 {
					b.Redis.SetTTL("k", c.ttl)
				}
				free := time.Now().Add(c.ttl)
				if c.del > 0 {
					free = time.Now().Add(c.del)
					time.AfterFunc(c.del, func() { b.Redis.Del("k") })
				}
				rs, calls := lineUp(t, b, 4, "k")
				w := watchKey(t, b, "k")
				lock, _ := w.get(calls[0])
				if late := time.Since(free); late < 0 || late > c.within {
					t.Errorf("the first in line has it %v after it was free, want at most %v", late, c.within)
				}
				release(t, lock)
				if d := w.serve(calls[1:]...); d > 200*time.Millisecond {
					t.Errorf("the others needed %v", d)
				}
				w.end()
				empty(t, b, rs...)
			})
		})
	}
}

// Redis forgets everything, the line too, with or without its connections. The holder learns it when it renews.
func TestLineAfterTheDataWasLost(t *testing.T) {
	for name, lose := range map[string]func(*servertest.Bubble){
		"flush":   func(b *servertest.Bubble) { b.Redis.FlushAll() },
		"restart": (*servertest.Bubble).Restart,
		"the line alone": func(b *servertest.Bubble) {
			b.Redis.Del("{k}:~line")
			b.Redis.Del("{k}:~wait")
		},
		"the order":             func(b *servertest.Bubble) { b.Redis.Del("{k}:~line") },
		"who they are":          func(b *servertest.Bubble) { b.Redis.Del("{k}:~wait") },
		"the fence":             func(b *servertest.Bubble) { b.Redis.Del("{k}:~fence") },
		"the lock":              func(b *servertest.Bubble) { b.Redis.Del("k") },
		"the lock and its line": func(b *servertest.Bubble) { b.Redis.Del("k"); b.Redis.Del("{k}:~line") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				rs, calls := lineUp(t, b, 4, "k")
				lose(b)
				synctest.Wait()
				kept := b.Redis.Exists("k")
				if kept {
					time.AfterFunc(3*time.Second, func() {
						if err := lock.Release(background); err != nil {
							t.Errorf("Release: %v", err)
						}
					})
				} else {
					time.AfterFunc(6*time.Second, func() { wantIs(t, lock.Release(background), holdfast.ErrLost) })
				}
				token := lock.Token()
				w := watchKey(t, b, "k")
				if d := w.serve(calls...); d > 6*time.Second {
					t.Errorf("served after %v", d)
				}
				if w.locks[0].Token() <= token {
					t.Errorf("token %d after %d", w.locks[0].Token(), token)
				}
				w.end()
				time.Sleep(10 * time.Second)
				empty(t, b, append(rs, holder)...)
			})
		})
	}
}

// A try does not come before the waiters when the lock becomes free without their being told: they have it.
func TestTryDoesNotJumpTheLine(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		lock := acquire(t, holder.Locker, "k")
		rs, calls := lineUp(t, b, 2, "k")
		b.Redis.Del("k")
		_, err := r.TryAcquire(background, "k")
		var held *holdfast.HeldError
		if !errors.As(err, &held) || held.TimeLeft <= 0 || held.TimeLeft > 3*time.Second {
			t.Errorf("got %v, want that the first in line has it, for a first lease", err)
		}
		w := watchKey(t, b, "k")
		first, waited := w.get(calls[0])
		if waited > 0 {
			t.Errorf("the first in line waited for %v", waited)
		}
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		release(t, first)
		w.serve(calls[1])
		w.end()
		empty(t, b, append(rs, holder, r)...)
	})
}

// A lock that is free is taken although dead waiters stand in line for it.
func TestFreeLockWithADeadLine(t *testing.T) {
	for _, c := range []struct {
		name  string
		die   func(*servertest.Link)
		limit time.Duration
	}{
		{"gone", func(l *servertest.Link) { l.Refuse(errRefused); l.Reset() }, 0},
		{"silent", func(l *servertest.Link) { l.CutUp(); l.CutDown() }, 7 * time.Second},
	} {
		for _, try := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					holder, r := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					lock := acquire(t, holder.Locker, "k", holdfast.WithoutRenewal())
					rs, calls := lineUp(t, b, 3, "k")
					time.Sleep(time.Until(lock.Deadline()))
					for _, w := range rs {
						c.die(w.link)
					}
					time.Sleep(time.Second)
					if b.Redis.Exists("k") {
						t.Fatal("the lease is not over")
					}
					w := watchKey(t, b, "k")
					begin := time.Now()
					var lk *holdfast.Lock
					for lk == nil {
						var err error
						if try {
							lk, err = r.TryAcquire(background, "k")
							wantHeld(t, err)
						} else {
							lk, err = r.Acquire(background, "k")
							if err != nil {
								t.Fatal(err)
							}
						}
						if lk == nil {
							time.Sleep(100 * time.Millisecond)
						}
					}
					w.add(lk)
					if d := time.Since(begin); d > c.limit {
						t.Errorf("a free lock was taken after %v", d)
					}
					for _, r := range rs {
						r.link.Refuse(nil)
						r.link.Heal()
					}
					time.Sleep(time.Second)
					release(t, lk)
					w.serve(calls...)
					w.end()
					wantIs(t, lock.Release(background), holdfast.ErrLost)
					empty(t, b, append(rs, holder, r)...)
				})
			})
		}
	}
}

func wantHeld(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		wantIs(t, err, holdfast.ErrNotAcquired)
	}
}

// waiters starts n calls, each of a process of its own, that wait for key in this order, and returns where their
// locks arrive.
func waiters(t *testing.T, b *servertest.Bubble, n int, key string, opts ...holdfast.Option) ([]*replica, []chan *holdfast.Lock) {
	t.Helper()
	rs, locks := make([]*replica, n), make([]chan *holdfast.Lock, n)
	for i := range n {
		rs[i], locks[i] = newReplica(t, b, opts...), make(chan *holdfast.Lock, 1)
		warm(t, rs[i])
		wait(t, rs[i], key, locks[i])
		time.Sleep(time.Millisecond)
	}
	return rs, locks
}
