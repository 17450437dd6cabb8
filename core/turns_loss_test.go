package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
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
	for name, c := range map[string]struct {
		opts []holdfast.CallOption
		lose func(b *servertest.Bubble)
	}{
		"redis forgets it": {nil, func(b *servertest.Bubble) { b.Redis.FlushAll() }},
		"max hold":         {[]holdfast.CallOption{holdfast.WithMaxHold(15 * time.Second)}, func(*servertest.Bubble) {}},
		"no progress":      {[]holdfast.CallOption{holdfast.WithProgress(15 * time.Second)}, func(*servertest.Bubble) {}},
		"another has it": {nil, func(b *servertest.Bubble) {
			_ = b.Redis.Set("k", "another")
			b.Redis.SetTTL("k", 7*time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				openInbox(t, b, r)
				lock := got(t, call(background, r, "k", c.opts...))
				one, two := call(background, r, "k"), call(background, r, "k")
				c.lose(b)
				next := got(t, one)
				wantIs(t, lock.Err(), holdfast.ErrLost)
				wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
				rises(t, lock, next)
				notLate(t, b, next)
				wantIs(t, lock.Release(background), holdfast.ErrLost)
				notYet(t, two)
				fine(t, next.Err())
				release(t, next)
				release(t, got(t, two))
			})
		})
	}
}

// Redis is away for longer than a lease: all who have waited for as long as their own lease are told at once, not one lease
// after the other, whatever the one in front of them asks, and calls that came later when they have.
func TestQueueInAnOutage(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, holder *replica) {
		lock := acquire(t, holder.Locker, "k", holdfast.WithTTL(time.Minute))
		ctx, cancel := context.WithCancel(background)
		long := call(ctx, r, "k", holdfast.WithTTL(2*time.Minute))
		var calls []<-chan result
		for range 5 {
			calls = append(calls, call(background, r, "k"))
		}
		time.Sleep(3 * time.Second)
		r.link.CutUp()
		began := time.Now()
		time.Sleep(3 * time.Second)
		late := call(background, r, "k")
		asked := time.Now()
		told := func(c <-chan result, began time.Time, most time.Duration) {
			t.Helper()
			res := <-c
			wantIs(t, res.err, holdfast.ErrUnavailable)
			if d := res.at.Sub(began); d < 4*time.Second || d > most {
				t.Errorf("told after %v", d)
			}
		}
		for _, c := range calls {
			told(c, began, 10*time.Second)
		}
		told(late, asked, 8*time.Second)
		cancel()
		wantIs(t, (<-long).err, context.Canceled)
		r.link.Heal()
		release(t, lock)
	}, holdfast.WithTTL(4*time.Second))
}

// A lease that should have been renewed by now is not handed over: the next one would hardly have it.
func TestQueueBehindALeaseThatRunsOut(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock, two := inRow(t, r)
		time.Sleep(2 * time.Second) // it may have begun short
		r.link.CutUp()
		time.Sleep(11 * time.Second)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		must(t, lock.Err())
		wantIs(t, lock.Release(ctx), holdfast.ErrUnavailable)
		notYet(t, two)
		r.link.Heal()
		next := got(t, two)
		notLate(t, b, next)
		release(t, next)
	}, holdfast.WithLocalHandover(64, time.Hour))
}

// A call whose context ends in the very moment in which its turn comes, or before it begins to wait for that, leaves the turn
// to the next.
func TestQueueTurnForACallThatEnds(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		openInbox(t, b, r)
		for i := range 150 {
			ctx, cancel := context.WithCancel(background)
			lock := got(t, call(background, r, "k"))
			switch i % 3 {
			case 0: // it can be handed over
				next := call(background, r, "k")
				release(t, lock)
				lock = got(t, next)
				fallthrough
			case 1:
				one, two := call(ctx, r, "k"), call(background, r, "k")
				go cancel()
				release(t, lock)
				if res := <-one; res.err == nil {
					release(t, res.lock)
				}
				release(t, got(t, two))
			case 2:
				_, err := r.Acquire(ctx, "k", holdfast.WithTrace(&holdfast.Trace{Waiting: func(holdfast.Event) {
					release(t, lock)
					cancel()
				}}))
				wantIs(t, err, context.Canceled)
			}
			cancel()
			if n := holdfast.Turns(r.Locker); n != 0 {
				t.Fatalf("%d rows left", n)
			}
		}
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
			ms := func(n int) time.Duration { return time.Duration(rnd.IntN(n)) * time.Millisecond }
			for range 40 {
				r, start, limit, hold := rs[rnd.IntN(2)], ms(100), ms(200), ms(12)
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
					if holder != nil && holder.Err() == nil || lock.Token() <= last {
						t.Errorf("seed %d: token %d after %d, and two holders: %v", seed, lock.Token(), last, holder.Err() == nil)
					}
					holder, last = lock, lock.Token()
					notLate(t, b, lock)
					time.Sleep(hold)
					release(t, lock)
				})
			}
			all.Wait()
			synctest.Wait()
			time.Sleep(time.Second)
			if holder == nil || b.Redis.Exists("k") {
				t.Errorf("seed %d: nobody was served, or the lock stayed", seed)
			}
			empty(t, b, rs...)
		})
	}
}

// Redis loses the key, and another process acquires it, before the lock is handed over within the first one: the call that
// takes it over has a token that was reserved before. It learns of that with the next renewal, and not later.
func TestQueueAfterRedisForgotTheKey(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		lock, two := inRow(t, r)
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
		fine(t, theirs.Err())
		wantIs(t, next.Release(background), holdfast.ErrLost)
		release(t, theirs)
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
				duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
					holder := other
					if behind {
						holder = r
					}
					lock := acquire(t, holder.Locker, "k")
					if name == "error" {
						r.link.OnCommand(first("acquire", servertest.LoseReplyAndClose))
					}
					go panics(t, func() { _, _ = r.Acquire(background, "k", holdfast.WithTrace(trace)) })
					synctest.Wait()
					one := call(background, r, "k")
					release(t, lock)
					release(t, got(t, one))
				})
			})
		}
	}
}

// Nor does one that panics as it is told of a hand-over, a loss, or of a release that fails, leave anything behind.
func TestHookThatPanicsAtTheEndOfAHold(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		boom := func(holdfast.Event) { panic("a hook") }
		first, next := inRow(t, r, holdfast.WithTrace(&holdfast.Trace{Ended: boom}), holdfast.WithReleaseInBackground())
		panics(t, func() { _ = first.Release(background) })
		release(t, got(t, next))

		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal(), holdfast.WithTrace(&holdfast.Trace{Ended: boom}))
		other := acquire(t, r.Locker, "other", holdfast.WithTrace(&holdfast.Trace{NodeError: boom}))
		r.link.CutUp()
		panics(t, func() { _ = other.Release(ended) })
		wantIs(t, other.Release(background), holdfast.ErrUnavailable)
		r.link.Heal()
		holdfast.StopTimer(r.Locker)
		time.Sleep(time.Minute)
		panics(t, func() { _ = lock.Err() })
		unheld(t, b, "other")
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
