package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A holder that loses the lock takes nobody with it: those behind it go on under a tenure of their own.
func TestQueueBehindALoss(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []holdfast.CallOption
		lose func(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock)
		ends bool // lost before the others may have it
	}{
		{"redis forgets it", nil, func(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock) {
			b.Redis.FlushAll()
		}, true},
		{"max hold", []holdfast.CallOption{holdfast.WithMaxHold(15 * time.Second)}, func(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock) {
		}, true},
		{"somebody else has it", nil, func(t *testing.T, b *servertest.Bubble, lk *holdfast.Lock) {
			_ = b.Redis.Set("k", "another")
			b.Redis.SetTTL("k", 7*time.Second)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b)
				openInbox(t, b, r)
				lock := got(t, call(background, r, "k", c.opts...))
				one, two := call(background, r, "k"), call(background, r, "k")
				c.lose(t, b, lock)
				next := got(t, one)
				wantIs(t, lock.Err(), holdfast.ErrLost)
				wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
				if next.Token() <= lock.Token() {
					t.Errorf("token %d after %d", next.Token(), lock.Token())
				}
				notLate(t, b, next)
				wantIs(t, lock.Release(background), holdfast.ErrLost)
				notYet(t, two)
				if err := next.Err(); err != nil {
					t.Errorf("the release of the lost lock: %v", err)
				}
				release(t, next)
				release(t, got(t, two))
				empty(t, b, r)
			})
		})
	}
}

// A lock that was dropped without a release blocks those behind it no longer than it is renewed.
func TestQueueBehindAForgottenLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		func() { got(t, call(background, r, "k")) }()
		one := call(background, r, "k")
		for range 20 {
			runtime.GC()
			time.Sleep(2 * time.Second)
		}
		release(t, got(t, one))
		empty(t, b, r)
	})
}

func TestQueueAtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		lock := got(t, call(background, r, "k"))
		var calls []<-chan result
		for range 5 {
			calls = append(calls, call(background, r, "k"))
		}
		behind := call(background, other, "k")
		down := make(chan error)
		go func() { down <- r.Shutdown(background) }()
		for _, c := range calls {
			wantIs(t, (<-c).err, holdfast.ErrClosed)
		}
		time.Sleep(time.Minute)
		if err := lock.Err(); err != nil {
			t.Errorf("the held lock: %v", err)
		}
		release(t, lock)
		if err := <-down; err != nil {
			t.Error(err)
		}
		release(t, got(t, behind))
		empty(t, b, other)
	})
}

// Redis is away for longer than a lease: all who have waited that long are told at once, not one lease after the
// other, and calls that came later when they have.
func TestQueueInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTTL(4*time.Second))
		lock := acquire(t, holder.Locker, "k", holdfast.WithTTL(time.Minute))
		var calls []<-chan result
		for range 5 {
			calls = append(calls, call(background, r, "k"))
		}
		time.Sleep(3 * time.Second)
		b.Link(r.rdb).CutUp()
		began := time.Now()
		time.Sleep(3 * time.Second)
		late := call(background, r, "k")
		asked := time.Now()
		for _, c := range calls {
			res := <-c
			wantIs(t, res.err, holdfast.ErrUnavailable)
			if d := res.at.Sub(began); d < 4*time.Second || d > 10*time.Second {
				t.Errorf("told after %v", d)
			}
		}
		res := <-late
		wantIs(t, res.err, holdfast.ErrUnavailable)
		if d := res.at.Sub(asked); d < 4*time.Second || d > 6*time.Second {
			t.Errorf("the late one was told after %v", d)
		}
		b.Link(r.rdb).Heal()
		release(t, lock)
		empty(t, b, r, holder)
	})
}

func TestQueueBehindAPanic(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		var all sync.WaitGroup
		ran := 0
		for i := range 6 {
			all.Go(func() {
				defer func() { _ = recover() }()
				_ = r.Do(background, "k", func(context.Context) error {
					ran++
					time.Sleep(10 * time.Millisecond)
					if i%2 == 0 {
						panic("a handler")
					}
					return nil
				})
			})
		}
		all.Wait()
		if ran != 6 {
			t.Errorf("%d of 6 ran", ran)
		}
		empty(t, b, r)
	})
}

// A lease that should have been renewed by now is not handed over: the next one would hardly have it.
func TestQueueBehindALeaseThatRunsOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithLocalHandover(64, time.Hour))
		warm(t, r)
		zero := acquire(t, r.Locker, "k")
		one, two := call(background, r, "k"), call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		time.Sleep(2 * time.Second) // it may have begun short
		b.Link(r.rdb).CutUp()
		time.Sleep(11 * time.Second)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if err := lock.Err(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, lock.Release(ctx), holdfast.ErrUnavailable)
		notYet(t, two)
		b.Link(r.rdb).Heal()
		next := got(t, two)
		notLate(t, b, next)
		release(t, next)
		empty(t, b, r)
	})
}

// A call that ends in the very moment in which its turn comes.
func TestQueueTurnForACallThatEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		openInbox(t, b, r)
		for i := range 150 {
			ctx, cancel := context.WithCancel(background)
			lock := got(t, call(background, r, "k"))
			if i%2 == 0 { // one that can be handed over
				next := call(background, r, "k")
				release(t, lock)
				lock = got(t, next)
			}
			one, two := call(ctx, r, "k"), call(background, r, "k")
			go cancel()
			release(t, lock)
			if res := <-one; res.err == nil {
				release(t, res.lock)
			}
			release(t, got(t, two))
			if n := holdfast.Queues(r.Locker); n != 0 {
				t.Fatalf("%d queues left", n)
			}
		}
		empty(t, b, r)
	})
}

// A call that finds, when it begins to wait, that its turn has come and its context has ended.
func TestQueueTurnBeforeTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		for range 30 {
			ctx, cancel := context.WithCancel(background)
			lock := got(t, call(background, r, "k"))
			_, err := r.Acquire(ctx, "k", holdfast.WithTrace(&holdfast.Trace{Waiting: func(holdfast.Event) {
				release(t, lock)
				cancel()
			}}))
			wantIs(t, err, context.Canceled)
			if n := holdfast.Queues(r.Locker); n != 0 {
				t.Fatalf("%d queues left", n)
			}
		}
		empty(t, b, r)
	})
}

// Calls of two processes that end at any moment, while they wait, while a lock is on its way to them or while they
// hold it: never two holders, tokens rise, nothing stays.
func TestQueueOfImpatientCalls(t *testing.T) {
	for seed := range uint64(15) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			rs := []*replica{
				newReplica(t, b, holdfast.WithLocalHandover(3, 50*time.Millisecond), holdfast.WithTTL(3*time.Second)),
				newReplica(t, b, holdfast.WithLocalHandover(8, 20*time.Millisecond)),
			}
			for _, r := range rs {
				r.link.Delay(time.Millisecond)
			}
			var all sync.WaitGroup
			var holder *holdfast.Lock
			var last int64
			served := 0
			for range 40 {
				r, start := rs[rnd.IntN(2)], time.Duration(rnd.IntN(100))*time.Millisecond
				limit, hold := time.Duration(rnd.IntN(200))*time.Millisecond, time.Duration(rnd.IntN(12))*time.Millisecond
				var opts []holdfast.CallOption
				switch rnd.IntN(8) {
				case 0:
					opts = append(opts, holdfast.WithWait(limit))
					limit *= 2
				case 1:
					opts = append(opts, holdfast.WithoutRenewal())
				}
				all.Go(func() {
					time.Sleep(start)
					ctx, cancel := context.WithTimeout(background, limit)
					defer cancel()
					lock, err := r.Acquire(ctx, "k", opts...)
					if err != nil {
						if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("seed %d: %v", seed, err)
						}
						return
					}
					if holder != nil && holder.Err() == nil {
						t.Errorf("seed %d: two holders, %d and %d", seed, holder.Token(), lock.Token())
					}
					if lock.Token() <= last {
						t.Errorf("seed %d: token %d after %d", seed, lock.Token(), last)
					}
					holder, last = lock, lock.Token()
					served++
					notLate(t, b, lock)
					time.Sleep(hold)
					release(t, lock)
				})
			}
			all.Wait()
			if served == 0 {
				t.Errorf("seed %d: nobody was served", seed)
			}
			synctest.Wait()
			time.Sleep(time.Second)
			if b.Redis.Exists("k") {
				t.Errorf("seed %d: the lock stayed", seed)
			}
			empty(t, b, rs...)
		})
	}
}

// Redis loses the key, and another process acquires it, before the lock is handed over within the first one: the call that
// takes it over has a token that was reserved before. It learns of that with the next renewal, and not later.
func TestQueueAfterRedisForgotTheKey(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		zero := acquire(t, r.Locker, "k")
		one, two := call(background, r, "k"), call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		b.Redis.FlushAll()
		time.Sleep(10 * time.Millisecond)
		theirs := acquire(t, other.Locker, "k")
		release(t, lock)
		next := got(t, two)
		if next.Token() <= lock.Token() || next.Token() >= theirs.Token() {
			t.Errorf("tokens %d, %d and %d: the one that was taken over is not the older", lock.Token(), next.Token(), theirs.Token())
		}
		time.Sleep(5*time.Second + time.Millisecond)
		wantIs(t, next.Err(), holdfast.ErrLost)
		if err := theirs.Err(); err != nil {
			t.Error(err)
		}
		wantIs(t, next.Release(background), holdfast.ErrLost)
		release(t, theirs)
		empty(t, b, r, other)
	})
}

// A hook that panics ends its call; those behind it go on.
func TestQueueBehindAHookThatPanics(t *testing.T) {
	boom := func(holdfast.Event) { panic("a hook") }
	for name, trace := range map[string]*holdfast.Trace{
		"waiting":  {Waiting: boom},
		"acquired": {Acquired: boom},
		"error":    {NodeError: boom},
	} {
		for _, behind := range []bool{false, true} {
			t.Run(name+" "+strconv.FormatBool(behind), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r, other := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					var lock *holdfast.Lock
					if behind {
						lock = acquire(t, r.Locker, "k")
					} else {
						lock = acquire(t, other.Locker, "k")
					}
					if name == "error" {
						r.link.OnCommand(first("acquire", servertest.LoseReplyAndClose))
					}
					go panics(t, func() { _, _ = r.Acquire(background, "k", holdfast.WithTrace(trace)) })
					synctest.Wait()
					one := call(background, r, "k")
					release(t, lock)
					release(t, got(t, one))
					empty(t, b, r, other)
				})
			})
		}
	}
}

// Nor does one that panics as it is told of a loss, or of a release that fails, leave anything behind.
func TestHookThatPanicsAtTheEndOfAHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		boom := func(holdfast.Event) { panic("a hook") }
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal(), holdfast.WithTrace(&holdfast.Trace{Lost: boom}))
		other := acquire(t, r.Locker, "other", holdfast.WithTrace(&holdfast.Trace{NodeError: boom}))
		r.link.CutUp()
		panics(t, func() { _ = other.Release(ended) })
		wantIs(t, other.Release(background), holdfast.ErrUnavailable)
		r.link.Heal()
		holdfast.StopTimer(r.Locker)
		time.Sleep(time.Minute)
		panics(t, func() { _ = lock.Err() })
		if b.Redis.Exists("other") {
			t.Error("not released")
		}
		empty(t, b, r)
	})
}

var ended = func() context.Context {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return ctx
}()

// panics checks that fn does.
func panics(t *testing.T, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	fn()
}
