package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Without hand-over, too, one call of a process at a time asks the masters.
func TestRedLockQueuesWithoutHandover(t *testing.T) {
	voters(t, 3, func(t *testing.T, ms masters, a, b *voter) {
		lock := acquire(t, a.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := b.Acquire(ctx, "k")
				wantIs(t, err, holdfast.ErrNotAcquired, context.Canceled)
			})
		}
		time.Sleep(5 * time.Second)
		each(ms, (*servertest.Bubble).ResetCommands)
		time.Sleep(20 * time.Second)
		if n := b.links[0].Commands()["evalsha"]; n > 20 {
			t.Errorf("20 calls of a process asked %d times in 20 s", n)
		}
		cancel()
		all.Wait()
		releaseAll(t, lock)
		time.Sleep(time.Second)
		first := acquire(t, b.Locker, "k")
		second := b.next(t, "k")
		time.Sleep(time.Second)
		owner := holdfast.Owner(first)
		release(t, first)
		if lock := got(t, second); holdfast.Owner(lock) == owner {
			t.Error("it was handed over")
		} else {
			release(t, lock)
		}
	}, holdfast.WithLocalHandover(0, 0))
}

func TestRedLockSelfDeadlockWithClientsInAnotherOrder(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		x, y, z := ms[0].Client(), ms[1].Client(), ms[2].Client()
		a, b := quorum(t, []*redis.Client{x, y, z}), quorum(t, []*redis.Client{z, x, y})
		lock := acquire(t, a, "k")
		_, err := b.TryAcquire(lock.Context(background), "k")
		wantIs(t, err, holdfast.ErrSelfDeadlock)
		release(t, lock)
		shutdown(t, a)
		shutdown(t, b)
	})
}

// Two clients that lead to one server are no majority of three, not even the first time.
func TestRedLockTwins(t *testing.T) {
	bubbleOf(t, 2, func(t *testing.T, ms masters) {
		var r reported
		l := quorum(t, []*redis.Client{ms[0].Client(), ms[0].Client(), ms[1].Client()}, holdfast.WithTrace(r.trace()))
		ms[1].Down()
		_, err := l.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrInvalid)
		wantIs(t, errors.Join(r.all()...), holdfast.ErrInvalid)
		shutdown(t, l)
		ms.have(t, "k", 0)
	})
}

// A suspended machine finds its lock still there, also as keys that somebody made persistent, and gone where most masters have
// forgotten it.
func TestRedLockSuspended(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, opts := range [][]holdfast.CallOption{nil, {holdfast.WithoutRenewal()}} {
			lock := acquire(t, v.Locker, "k", opts...)
			time.Sleep(time.Millisecond)
			if opts != nil {
				each(ms, func(m *servertest.Bubble) { m.Client().Persist(background, "k") })
			}
			holdfast.SkewWall(v.Locker, time.Minute)
			fine(t, lock.Err())
			each(ms[:2], func(m *servertest.Bubble) { _ = m.Redis.Set("k", "other") })
			holdfast.SkewWall(v.Locker, time.Minute)
			wantIs(t, lock.Err(), holdfast.ErrLost)
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			time.Sleep(time.Millisecond)
			ms.have(t, "k", 2)
			each(ms, forget("k"))
		}
		shutdown(t, v.Locker)
	})
}

// A clock that is set forward looks like a suspension. A renewal and an extension ask first, and then do their work.
func TestRedLockOutlastsASetClock(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		lock := acquire(t, v.Locker, "k", holdfast.WithTTL(10*time.Second))
		most := func(what string, d time.Duration) {
			n := 0
			for _, m := range ms {
				if m.Redis.TTL("k") > d {
					n++
				}
			}
			if n < 2 {
				t.Errorf("%d masters have %s", n, what)
			}
		}
		time.Sleep(time.Millisecond)
		holdfast.SkewWall(v.Locker, time.Minute)
		time.Sleep(4 * time.Second)
		most("a renewal", 9*time.Second)
		holdfast.SkewWall(v.Locker, time.Minute)
		fine(t, lock.Extend(background, 20*time.Second))
		most("the extension", 19*time.Second)
		release(t, lock)
		shutdown(t, v.Locker)
	})
}

// A machine that was suspended asks about its locks before it renews them: of one that is released while the question
// about another hangs, no renewal goes out.
func TestRedLockRenewsNothingThatWasReleasedMeanwhile(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, redlock.WithQuarantine(0), holdfast.WithTTL(5*time.Minute))
		defer func() { time.Sleep(15 * time.Minute) }()
		locks := map[string]*holdfast.Lock{}
		for _, k := range []string{"a", "b"} {
			locks[k] = acquire(t, v.Locker, k)
		}
		synctest.Wait()
		var mu sync.Mutex
		one, released, late := "", false, 0
		v.on(func(args []string) servertest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if kind(args) != "sustain" {
				return servertest.Pass
			}
			if key := args[3]; one == "" || key == one {
				one = key
				if released {
					late++
				}
			} else if strings.HasPrefix(args[len(args)-1], "0 ") {
				return servertest.HoldReply(nil)
			}
			return servertest.Pass
		})
		holdfast.SkewWall(v.Locker, time.Hour)
		time.Sleep(100*time.Second + 200*time.Millisecond) // the renewal asks about the first, and is hung with the second
		mu.Lock()
		first := one
		mu.Unlock()
		release(t, locks[first])
		mu.Lock()
		released = true
		mu.Unlock()
		time.Sleep(10 * time.Second)
		if late > 0 || ms.having(first) > 0 {
			t.Errorf("%d renewals after the release; it is on %d masters", late, ms.having(first))
		}
		v.on(nil)
		each(v.links, (*servertest.Link).Reset)
	})
}
