package holdfast_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A clock that is set forward ends leases early: two count as holding until the first one's next renewal, and the second has
// the larger token. A step that the margin covers takes nothing from anybody.
func TestServerClockSetForward(t *testing.T) {
	t.Parallel()
	clock := servertest.NewClock(t)
	s := clock.Redis()
	a, b := newLocker(t, s.Client()), newLocker(t, s.Client())
	first := obtain(t, a, "k", holdfast.WithTTL(time.Minute), holdfast.WithoutRenewal())
	clock.Step(2900 * time.Millisecond) // a twentieth of the lease is 3 s
	_, err := b.TryAcquire(background, "k")
	wantIs(t, err, holdfast.ErrNotAcquired)
	clock.Step(time.Minute)
	second := obtain(t, b, "k")
	if err := first.Err(); err != nil {
		t.Errorf("the clock of Redis says nothing to the first holder: got %v", err)
	}
	rises(t, first, second)
	wantIs(t, first.Release(background), holdfast.ErrLost)
	release(t, second)

	brief := obtain(t, a, "k", holdfast.WithTTL(2*time.Second), holdfast.WithoutRenewal())
	clock.Step(95 * time.Millisecond) // of 100
	rival := obtain(t, b, "k")
	wantIs(t, brief.Err(), holdfast.ErrLost) // before a rival has it
	release(t, rival)

	renewed := obtain(t, a, "k", holdfast.WithTTL(3*time.Second))
	clock.Step(time.Minute)
	release(t, obtain(t, b, "k"))
	until(t, "a renewal tells", func() bool { return errors.Is(renewed.Err(), holdfast.ErrLost) })
}

// A clock that is set back takes nothing from anybody, and leaves the lock of a holder that died for longer.
func TestServerClockSetBack(t *testing.T) {
	t.Parallel()
	clock := servertest.NewClock(t)
	s := clock.Redis()
	a, b := newLocker(t, s.Client()), newLocker(t, s.Client())
	first := obtain(t, a, "k", holdfast.WithTTL(time.Minute), holdfast.WithoutRenewal())
	clock.Step(-time.Hour)
	var held *holdfast.HeldError
	if _, err := b.TryAcquire(background, "k"); !errors.As(err, &held) || held.TimeLeft < time.Hour {
		t.Errorf("a rival: got %v, want it held for an hour and more", err)
	}
	if err := first.Err(); err != nil {
		t.Errorf("the holder: got %v", err)
	}
	clock.Step(time.Hour + 2*time.Minute) // as for one that died
	second := obtain(t, b, "k")
	clock.Step(-2 * time.Hour)
	wantIs(t, first.Release(background), holdfast.ErrLost)
	release(t, second)
	third := obtain(t, a, "k")
	rises(t, first, second)
	rises(t, second, third)
	release(t, third)
}

// Redis forgets tokens by its clock. One that is then set back by more than a token is remembered repeats them.
func TestServerTokensOfAClockThatWentForthAndBack(t *testing.T) {
	t.Parallel()
	clock := servertest.NewClock(t)
	rdb := clock.Redis().Client()
	l := newLocker(t, rdb)
	token := func(key string) int64 {
		t.Helper()
		lock := obtain(t, l, key)
		release(t, lock)
		return lock.Token()
	}
	for _, c := range []struct {
		forth, back time.Duration
		rises       bool
	}{
		{2 * time.Minute, time.Minute, true},
		{30 * time.Second, time.Hour, true}, // not forgotten
		{2 * time.Minute, time.Hour, false},
	} {
		key := (c.forth - c.back).String()
		was := token(key)
		clock.Step(c.forth)
		if n, err := rdb.Exists(background, "{"+key+"}:~fence").Result(); err != nil || (n == 0) != (c.forth > time.Minute) {
			t.Fatalf("%v forward: %d fences, %v", c.forth, n, err) // which looks, so that a key that is over is gone
		}
		clock.Step(-c.back)
		if is := token(key); is > was != c.rises {
			t.Errorf("%v forward and %v back: token %d after %d, want it to rise: %t", c.forth, c.back, is, was, c.rises)
		}
	}
	// It is remembered for longer by as much as it is ahead of the clock.
	was := token("behind")
	for _, by := range []time.Duration{-time.Hour, 2 * time.Minute, time.Hour} {
		clock.Step(by)
		is := token("behind")
		if is <= was {
			t.Errorf("behind, and %v: token %d after %d", by, is, was)
		}
		was = is
	}
}

// A tick is granted once, whatever the clock does within its window. One that has left it is forgotten, and not known to be
// too old if the clock is set back.
func TestServerTicksOfAClockThatWentForthAndBack(t *testing.T) {
	t.Parallel()
	clock := servertest.NewClock(t)
	l := newLocker(t, clock.Redis().Client())
	for _, c := range []struct {
		forth, back time.Duration
		again       bool
	}{
		{40 * time.Second, 40 * time.Second, false},
		{-40 * time.Second, -40 * time.Second, false},
		{2 * time.Minute, 2 * time.Minute, true},
	} {
		at := time.Now()
		claim := func() (bool, error) {
			return tick.Claim(bounded(t, time.Minute), l, c.forth.String(), at, tick.WithWindow(time.Minute, time.Hour))
		}
		if got, err := claim(); !got || err != nil {
			t.Fatalf("first claim: %t, %v", got, err)
		}
		clock.Step(c.forth)
		if got, err := claim(); got || errors.Is(err, tick.ErrWindow) != (c.forth > time.Minute) {
			t.Errorf("%v forward: got %t, %v", c.forth, got, err)
		}
		clock.Step(-c.back)
		if got, err := claim(); got != c.again || err != nil {
			t.Errorf("%v forward and %v back: got %t, %v, want %t", c.forth, c.back, got, err, c.again)
		}
	}
}

// A minority of masters may have any time. Where most are set back by more than 2 s a lock cannot be had before they have
// come to its last token again, and others can.
func TestServerRedLockClocksOfMasters(t *testing.T) {
	t.Parallel()
	most, some := servertest.NewClock(t), servertest.NewClock(t)
	f := fleet{most.Redis(), most.Redis(), most.Redis(), some.Redis(), some.Redis()}
	l := f.locker(t)
	last := int64(0)
	next := func(what string) {
		t.Helper()
		lock := obtain(t, l, "k")
		if lock.Token() <= last {
			t.Errorf("%s: token %d after %d", what, lock.Token(), last)
		}
		last = lock.Token()
		release(t, lock)
		f.empty(t, "k") // also where it is released behind the majority
	}
	next("at first")
	for _, by := range []time.Duration{time.Hour, -3 * time.Hour, 2 * time.Hour} {
		some.Step(by)
		next("a minority by " + by.String())
	}
	most.Step(-time.Hour)
	if _, err := l.TryAcquire(background, "k"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatalf("a majority set back: got %v, want ErrUnavailable", err) // or what follows would wait for it
	}
	until(t, "another lock", func() bool {
		lock, err := l.TryAcquire(background, "other")
		return err == nil && lock.Release(background) == nil
	})
	most.Step(time.Hour)
	next("a majority set right")
}
