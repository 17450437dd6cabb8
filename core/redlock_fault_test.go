package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// A call whose context ends just when it has the lock leaves it to nobody: the next call of the process must not wait for
// it as if it were somebody else's.
func TestRedLockOfACallWhoseContextEndsIsNotInTheWay(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, l := range v.links {
			l.Delay(5 * time.Millisecond)
		}
		for _, after := range []time.Duration{9, 10, 11} {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(after*time.Millisecond, cancel)
			first := make(chan error, 1)
			go func() {
				lock, err := v.Acquire(ctx, "k")
				if err == nil {
					err = lock.Release(background)
				}
				first <- err
			}()
			time.Sleep(time.Millisecond)
			began := time.Now()
			lock, err := v.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 200*time.Millisecond {
				t.Errorf("context ended after %vms: the next call had the lock after %v", int(after), d)
			}
			<-first
			release(t, lock)
			time.Sleep(time.Second)
			if n := ms.having("k"); n != 0 {
				t.Errorf("on %d masters, want 0", n)
			}
		}
		shutdown(t, v.Locker)
	})
}

// A hook that panics once the lock is there must not leave it.
func TestRedLockHookThatPanics(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		releaseAll(t, acquire(t, v.Locker, "k"))
		ms[2].HideInfo()
		v.links[0].Delay(time.Millisecond)
		v.links[1].Delay(time.Millisecond)
		armed := true
		got := make(chan *holdfast.Lock, 1)
		go func() {
			defer func() { _ = recover() }()
			_, _ = v.Acquire(background, "k", holdfast.WithTrace(&holdfast.Trace{NodeError: func(holdfast.Event) {
				if armed {
					armed = false
					time.Sleep(time.Millisecond)
					panic("hook")
				}
			}}))
		}()
		go func() {
			time.Sleep(time.Microsecond)
			lock, err := v.Acquire(background, "k")
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		began := time.Now()
		lock := <-got
		if d := time.Since(began); d > 200*time.Millisecond {
			t.Errorf("the next call had the lock after %v", d)
		}
		release(t, lock)
		shutdown(t, v.Locker)
	})
}

// After a quiet time many calls at once are not taken for a master that hangs.
func TestRedLockBurst(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, l := range v.links {
			l.Delay(20 * time.Millisecond)
		}
		releaseAll(t, acquire(t, v.Locker, "k"))
		time.Sleep(time.Minute)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				lock, err := v.TryAcquire(background, fmt.Sprint("k", i), holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { t.Error(e.Err) }}))
				if err != nil {
					t.Error(err)
					return
				}
				if err = lock.Release(background); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		shutdown(t, v.Locker)
	})
}

// The clock of one of several masters is none of the others' business.
func TestRedLockWithAMasterWhoseClockIsWrong(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			ms[0].Skew(off)
			ms[0].Uptime(24 * time.Hour)
			a, b := ms.voter(t), ms.voter(t)
			b.links[1].Delay(5 * time.Millisecond) // the odd one answers first
			b.links[2].Delay(5 * time.Millisecond)
			lock := acquire(t, a.Locker, "k")
			got := make(chan error, 1)
			go func() {
				lock, err := b.Acquire(background, "k")
				if err == nil {
					err = lock.Release(background)
				}
				got <- err
			}()
			time.Sleep(40 * time.Second)
			release(t, lock)
			began := time.Now()
			if err := <-got; err != nil {
				t.Errorf("the clock of a master is off by %v: %v", off, err)
			}
			if d := time.Since(began); d > 200*time.Millisecond {
				t.Errorf("the clock of a master is off by %v: the next one had the lock after %v", off, d)
			}
			releaseAll(t, acquire(t, b.Locker, "k"))
			shutdown(t, a.Locker)
			shutdown(t, b.Locker)
		})
	}
}

// A client whose own clock is wrong learns the time of the masters.
func TestRedLockWithAClientWhoseClockIsWrong(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		bubbleOf(t, 5, func(t *testing.T, ms masters) {
			a, b := ms.voter(t), ms.voter(t)
			for _, l := range a.links {
				l.Delay(30 * time.Millisecond)
			}
			holdfast.SkewWall(a.Locker, off)
			first := acquire(t, a.Locker, "k", holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { t.Log(e.Err) }}))
			releaseAll(t, first)
			time.Sleep(time.Second)
			second := acquire(t, b.Locker, "k")
			if second.Token() <= first.Token() {
				t.Errorf("token %d after %d", second.Token(), first.Token())
			}
			releaseAll(t, second)
			began := time.Now()
			third := acquire(t, a.Locker, "k")
			if d := time.Since(began); d > 60*time.Millisecond {
				t.Errorf("later acquisitions take %v, want one round trip", d)
			}
			if third.Token() <= second.Token() {
				t.Errorf("token %d after %d", third.Token(), second.Token())
			}
			releaseAll(t, third)
			shutdown(t, a.Locker)
			shutdown(t, b.Locker)
		})
	}
}

// A master that is down is told of once by each acquisition, however long it waits.
func TestRedLockTellsOfADeadMasterOnce(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t, holdfast.WithNodeTimeout(5*time.Second))
		releaseAll(t, acquire(t, a.Locker, "k"))
		releaseAll(t, acquire(t, b.Locker, "k"))
		for _, l := range b.links {
			l.Delay(210 * time.Millisecond) // longer than it takes go-redis to give up a dial
		}
		ms[1].Down()
		lock := acquire(t, a.Locker, "k")
		var mu sync.Mutex
		var events []error
		trace := holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { mu.Lock(); events = append(events, e.Err); mu.Unlock() }})
		_, err := b.Acquire(background, "k", holdfast.WithWait(20*time.Second), trace)
		wantIs(t, err, holdfast.ErrNotAcquired)
		if len(events) != 1 {
			t.Errorf("%d NodeErrors for one master: %v", len(events), events)
		}
		events = nil
		ms[0].Down()
		_, err = b.TryAcquire(background, "k", trace)
		wantIs(t, err, holdfast.ErrUnavailable)
		t.Log(err)
		if len(events) != 2 {
			t.Errorf("%d NodeErrors for two masters: %v", len(events), events)
		}
		ms[0].Up()
		ms[1].Up()
		_ = lock.Release(background)
	})
}

// The token that Inspect tells is that of the holder, not of somebody who tried.
func TestRedLockInspectTellsTheHoldersToken(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		releaseAll(t, acquire(t, a.Locker, "k"))
		a.links[3].CutUp()
		a.links[4].CutUp()
		lock := acquire(t, a.Locker, "k")
		time.Sleep(time.Second)
		_, err := b.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
		time.Sleep(time.Millisecond)
		s, err := b.Inspect(background, "k")
		if err != nil || s.Token != lock.Token() {
			t.Errorf("Inspect: %+v, %v, want token %d", s, err, lock.Token())
		}
		a.links[3].Heal()
		a.links[4].Heal()
		release(t, lock)
		synctest.Wait()
		if n := ms.having("k"); n != 0 {
			t.Errorf("on %d masters after Release", n)
		}
		if errors.Is(lock.Err(), holdfast.ErrLost) {
			t.Error(lock.Err())
		}
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}
