package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Without hand-over, too, one call of a process at a time asks the masters.
func TestRedLockQueuesWithoutHandover(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t, holdfast.WithLocalHandover(0, 0))
		lock := acquire(t, a.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		done := make(chan error)
		for range 20 {
			go func() { _, err := b.Acquire(ctx, "k"); done <- err }()
		}
		time.Sleep(5 * time.Second)
		for _, m := range ms {
			m.ResetCommands()
		}
		time.Sleep(20 * time.Second)
		if n := b.links[0].Commands()["evalsha"]; n > 20 {
			t.Errorf("20 calls of a process asked %d times in 20 s", n)
		}
		cancel()
		for range 20 {
			wantIs(t, <-done, holdfast.ErrNotAcquired, context.Canceled)
		}
		releaseAll(t, lock)
		time.Sleep(time.Second)
		first := acquire(t, b.Locker, "k")
		got := make(chan *holdfast.Lock)
		go func() { l, _ := b.Acquire(background, "k"); got <- l }()
		time.Sleep(time.Second)
		owner := holdfast.Owner(first)
		release(t, first)
		second := <-got
		if holdfast.Owner(second) == owner {
			t.Error("it was handed over")
		}
		release(t, second)
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

func TestRedLockSelfDeadlockWithClientsInAnotherOrder(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		x, y, z := ms[0].Client(), ms[1].Client(), ms[2].Client()
		a, err1 := holdfast.NewRedLock([]*redis.Client{x, y, z})
		b, err2 := holdfast.NewRedLock([]*redis.Client{z, x, y})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
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
		l, err := holdfast.NewRedLock([]*redis.Client{ms[0].Client(), ms[0].Client(), ms[1].Client()}, holdfast.WithTrace(r.trace()))
		if err != nil {
			t.Fatal(err)
		}
		ms[1].Down()
		_, err = l.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrInvalid)
		if !slices.ContainsFunc(r.all(), func(err error) bool { return errors.Is(err, holdfast.ErrInvalid) }) {
			t.Errorf("told of %v, want an ErrInvalid too", r.all())
		}
		shutdown(t, l)
		if ms.having("k") != 0 {
			t.Error("a key is left")
		}
	})
}

// A key that somebody made persistent is still held, also where only the wall clock makes the holder ask.
func TestRedLockOfPersistentKeys(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		lock := acquire(t, v.Locker, "k", holdfast.WithoutRenewal())
		time.Sleep(time.Millisecond)
		for _, m := range ms {
			m.Client().Persist(background, "k")
		}
		holdfast.SkewWall(v.Locker, time.Minute)
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		release(t, lock)
		shutdown(t, v.Locker)
	})
}

// A suspended machine finds its lock gone where most masters have forgotten it.
func TestRedLockSuspended(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, opts := range [][]holdfast.CallOption{nil, {holdfast.WithoutRenewal()}} {
			lock := acquire(t, v.Locker, "k", opts...)
			time.Sleep(time.Millisecond)
			holdfast.SkewWall(v.Locker, time.Minute)
			if err := lock.Err(); err != nil {
				t.Errorf("the clock was set: %v", err)
			}
			ms[0].Redis.Set("k", "other")
			ms[1].Redis.Set("k", "other")
			holdfast.SkewWall(v.Locker, time.Minute)
			wantIs(t, lock.Err(), holdfast.ErrLost)
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			time.Sleep(time.Millisecond)
			if ms[2].Redis.Exists("k") {
				t.Error("the third master still has it")
			}
			ms[0].Redis.Del("k")
			ms[1].Redis.Del("k")
		}
		shutdown(t, v.Locker)
	})
}

// A machine that was suspended asks about all of its locks before it renews any: of one that is released while the question
// about another hangs, no renewal goes out.
func TestRedLockRenewsNothingThatWasReleasedMeanwhile(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithQuarantine(0), holdfast.WithTTL(5*time.Minute))
		defer func() { time.Sleep(15 * time.Minute) }()
		locks := map[string]*holdfast.Lock{}
		for _, k := range []string{"a", "b"} {
			locks[k] = acquire(t, v.Locker, k)
		}
		synctest.Wait()
		var mu sync.Mutex
		one, released, late := "", false, 0
		for _, l := range v.links {
			l.OnCommand(func(args []string) servertest.Verdict {
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
		}
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
		for _, l := range v.links {
			l.OnCommand(nil)
			l.Reset()
		}
	})
}
