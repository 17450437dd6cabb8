package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestRedLockHoldsOnAllMasters(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		lock := acquire(t, a.Locker, "k", holdfast.WithLabel("me"))
		synctest.Wait()
		if n := ms.having("k"); n != 5 {
			t.Errorf("on %d masters, want 5", n)
		}
		_, err := b.TryAcquire(background, "k")
		var held *holdfast.HeldError
		if !errors.As(err, &held) || held.Label != "me" || held.TimeLeft < 14*time.Second {
			t.Errorf("a rival: got %v", err)
		}
		s, err := b.Inspect(background, "k")
		if err != nil || !s.Held || s.Label != "me" || s.Token != lock.Token() {
			t.Errorf("Inspect: %+v, %v, want token %d", s, err, lock.Token())
		}
		time.Sleep(time.Minute)
		if err := lock.Err(); err != nil {
			t.Errorf("after a minute: %v", err)
		}
		release(t, lock)
		synctest.Wait()
		if n := ms.having("k"); n != 0 {
			t.Errorf("on %d masters after Release, want 0", n)
		}
		next := acquire(t, b.Locker, "k")
		if next.Token() <= lock.Token() {
			t.Errorf("token %d after %d", next.Token(), lock.Token())
		}
		release(t, next)
		if s, err = b.Inspect(background, "k"); err != nil || s.Held {
			t.Errorf("Inspect: %+v, %v", s, err)
		}
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

func TestRedLockCostsOneRoundTripAndTwoCommandsPerMaster(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		warm := acquire(t, v.Locker, "k") // the scripts
		synctest.Wait()                   // or the release overtakes the last vote, and that master votes no more for this token
		releaseAll(t, warm)
		for _, m := range ms {
			m.ResetCommands()
		}
		for _, l := range v.links {
			l.Delay(10 * time.Millisecond)
		}
		began := time.Now()
		lock := acquire(t, v.Locker, "k")
		if d := time.Since(began); d != 20*time.Millisecond {
			t.Errorf("an acquisition took %v, want one round trip of 20ms", d)
		}
		began = time.Now()
		release(t, lock)
		if d := time.Since(began); d != 20*time.Millisecond {
			t.Errorf("a release took %v, want one round trip of 20ms", d)
		}
		time.Sleep(time.Second) // some of it may go over connections that are yet to be made
		for _, m := range ms {
			if c := m.Commands(); c["evalsha"] != 2 || len(c) != 1 {
				t.Errorf("commands: %v, want 2 evalsha", c)
			}
		}
	})
}

// A lease counts from before the first command, however long the answers take: from the reply on, a holder would still
// count as one when the masters have let go.
func TestRedLockDeadlineCountsFromBeforeTheRequest(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		const ttl, back = 3 * time.Second, 250 * time.Millisecond
		v := ms.voter(t, holdfast.WithTTL(ttl), redlock.WithNodeTimeout(time.Second))
		releaseAll(t, acquire(t, v.Locker, "k"))
		time.Sleep(time.Second)
		for _, l := range v.links {
			l.DelayDown(back)
		}
		// first is when the masters let go of it, if nothing more comes.
		first := func() (d time.Duration) {
			d = time.Hour
			for _, m := range ms {
				d = min(d, m.Redis.TTL("k"))
			}
			return d
		}
		check := func(what string, lock *holdfast.Lock) {
			t.Helper()
			left, want := time.Until(lock.Deadline()), first()
			if spare := want - left; spare < holdfast.Margin(ttl)-time.Millisecond {
				t.Errorf("%s: over for the holder %v before the masters let go, want %v", what, spare, holdfast.Margin(ttl))
			}
		}
		lock := acquire(t, v.Locker, "k", holdfast.WithoutRenewal())
		check("acquired", lock)
		time.Sleep(ttl / 3)
		if err := lock.Extend(background, ttl); err != nil {
			t.Fatal(err)
		}
		check("extended", lock)
		time.Sleep(time.Until(lock.Deadline()))
		if lock.Err() == nil || ms.having("k") != 5 {
			t.Errorf("at the deadline: %v, and on %d masters", lock.Err(), ms.having("k"))
		}
		_ = lock.Release(background)
		time.Sleep(time.Second)

		// A renewal by the scheduler.
		lock = acquire(t, v.Locker, "k")
		time.Sleep(ttl/3 + 2*back)
		check("renewed", lock)
		releaseAll(t, lock)
	})
}

// An extension that reaches too few masters leaves leases of different lengths. The holder relies on what most masters have.
func TestRedLockDeadlineIsThatOfMostMasters(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		lock := acquire(t, v.Locker, "k")
		v.on(every("sustain", servertest.LoseRequest))
		v.links[0].OnCommand(nil)
		wantIs(t, lock.Extend(background, 24*time.Second), holdfast.ErrUnavailable)
		v.on(nil)
		fine(t, lock.Extend(background, 15*time.Second))
		if left := time.Until(lock.Deadline()); left > 15*time.Second {
			t.Errorf("the deadline is in %v, two of three masters have a lease of 15s", left)
		}
		releaseAll(t, lock)
		shutdown(t, v.Locker)
	})
}

func TestRedLockWithHungMasters(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithTTL(5*time.Second))
		releaseAll(t, acquire(t, v.Locker, "k"))
		ms[0].Pause()
		ms[3].Pause()
		began := time.Now()
		lock := acquire(t, v.Locker, "k")
		if err := lock.Extend(background, 6*time.Second); err != nil {
			t.Errorf("Extend: %v", err)
		}
		release(t, lock)
		if d := time.Since(began); d != 0 {
			t.Errorf("two hung masters cost %v", d)
		}
		time.Sleep(time.Millisecond)
		lock = acquire(t, v.Locker, "k")
		ms[4].Pause()
		began = time.Now()
		err := lock.Extend(background, 6*time.Second)
		wantIs(t, err, holdfast.ErrUnavailable)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("Extend gave up after %v, want the node timeout", d)
		}
		began = time.Now()
		wantIs(t, lock.Release(background), holdfast.ErrUnavailable)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("Release gave up after %v, want the node timeout", d)
		}
		began = time.Now()
		_, err = v.TryAcquire(background, "k2")
		wantIs(t, err, holdfast.ErrUnavailable)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("TryAcquire gave up after %v, want the node timeout", d)
		}
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		defer cancel()
		began = time.Now()
		_, err = v.Acquire(ctx, "k2")
		wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("Acquire returned after %v, want with its context", d)
		}
		for _, i := range []int{0, 3, 4} {
			ms[i].Resume()
		}
		shutdown(t, v.Locker)
		if n := ms.having("k") + ms.having("k2"); n != 0 {
			t.Errorf("%d keys left", n)
		}
	})
}

func TestRedLockWaiterIsToldOfTheRelease(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		for _, l := range append(a.links, b.links...) {
			l.Delay(5 * time.Millisecond)
		}
		lock := acquire(t, a.Locker, "k")
		got := make(chan time.Time, 1)
		go func() {
			lock, err := b.Acquire(background, "k")
			if err != nil {
				t.Error(err)
				return
			}
			got <- time.Now()
			release(t, lock)
		}()
		time.Sleep(3 * time.Second)
		began := time.Now()
		release(t, lock)
		if d := (<-got).Sub(began); d > 40*time.Millisecond {
			t.Errorf("the next one had the lock after %v", d)
		}
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

// A lock is held on three masters, and two of them forget it.
func TestRedLockQuarantineKeepsOthersOut(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		ms[0].Down()
		ms[1].Down()
		lock := acquire(t, a.Locker, "k", holdfast.WithoutRenewal())
		ms[0].Up()
		ms[1].Up()
		ms[0].Uptime(time.Hour)
		ms[1].Uptime(time.Hour)
		ms[3].Restart()
		ms[4].Restart()
		for lock.Err() == nil {
			if rival, err := b.TryAcquire(background, "k"); err == nil {
				t.Fatalf("two holders, %d and %d", lock.Token(), rival.Token())
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Until(lock.Deadline()) + 2*time.Second)
		next := acquire(t, b.Locker, "k") // three masters are enough
		if next.Token() <= lock.Token() {
			t.Errorf("token %d after %d", next.Token(), lock.Token())
		}
		release(t, next)
		_ = lock.Release(background)
	})
}

// A master whose clock is set forward after a restart is old enough by that clock. A process that knew it from before goes
// by its own.
func TestRedLockQuarantineOfMastersThatSeemOld(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		releaseAll(t, acquire(t, v.Locker, "k"))
		for _, m := range ms[:2] {
			m.Restart()
			m.Uptime(time.Hour)
		}
		_, err := v.TryAcquire(background, "k")
		if e := young(t, err); len(e.Nodes) != 2 {
			t.Errorf("got %v", err)
		}
		time.Sleep(31 * time.Second)
		releaseAll(t, acquire(t, v.Locker, "k"))
		shutdown(t, v.Locker)
	})
}

func TestRedLockSaysWhichMastersAreInQuarantine(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, m := range ms[:3] {
			m.Restart()
		}
		_, err := v.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		var young *redlock.QuarantineError
		if !errors.As(err, &young) || len(young.Nodes) != 3 {
			t.Fatalf("got %v", err)
		}
		if d := time.Until(young.Until); d < 29*time.Second || d > 32*time.Second {
			t.Errorf("until %v from now", d)
		}
		time.Sleep(time.Until(young.Until) - 2*time.Second)
		_, err = v.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		time.Sleep(2 * time.Second)
		releaseAll(t, acquire(t, v.Locker, "k"))
		for _, m := range ms[2:] {
			m.HideInfo()
		}
		_, err = v.TryAcquire(background, "k")
		if !errors.As(err, &young) || len(young.Nodes) != 3 || !young.Until.IsZero() {
			t.Errorf("with INFO refused: got %v", err)
		}
	})
}
