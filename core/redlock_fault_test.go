package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A call whose context ends just when it has the lock leaves it to nobody: the next call of the process must not wait for
// it as if it were somebody else's.
func TestRedLockOfACallWhoseContextEndsIsNotInTheWay(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		each(v.links, func(l *servertest.Link) { l.Delay(5 * time.Millisecond) })
		for _, after := range []time.Duration{9, 10, 11} {
			ctx, cancel := context.WithTimeout(background, after*time.Millisecond)
			defer cancel()
			first := make(chan error, 1)
			go func() { first <- v.Do(ctx, "k", func(context.Context) error { return nil }) }()
			time.Sleep(time.Millisecond)
			began := time.Now()
			lock := got(t, v.next(t, "k"))
			atMost(t, began, 200*time.Millisecond)
			<-first
			release(t, lock)
			time.Sleep(time.Second)
			ms.have(t, "k", 0)
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
		each(v.links[:2], func(l *servertest.Link) { l.Delay(time.Millisecond) })
		armed := true
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
		time.Sleep(time.Microsecond)
		began := time.Now()
		lock := got(t, v.next(t, "k"))
		atMost(t, began, 200*time.Millisecond)
		if armed {
			t.Error("no hook panicked")
		}
		release(t, lock)
		shutdown(t, v.Locker)
	})
}

// After a quiet time many calls at once are not taken for a master that hangs.
func TestRedLockBurst(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { t.Error(e.Err) }}))
		each(v.links, func(l *servertest.Link) { l.Delay(20 * time.Millisecond) })
		releaseAll(t, acquire(t, v.Locker, "k"))
		time.Sleep(time.Minute)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				fine(t, v.Do(background, fmt.Sprint("k", i), func(context.Context) error { return nil }, holdfast.WithWait(0)))
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
			each(b.links[1:], func(l *servertest.Link) { l.Delay(5 * time.Millisecond) }) // the odd one answers first
			lock := acquire(t, a.Locker, "k")
			next := b.next(t, "k")
			time.Sleep(40 * time.Second)
			release(t, lock)
			began := time.Now()
			release(t, got(t, next))
			atMost(t, began, 200*time.Millisecond)
			time.Sleep(time.Second) // for the answer of the last master, in whose connection the next command goes then
			releaseAll(t, acquire(t, b.Locker, "k"))
			shutdown(t, a.Locker)
			shutdown(t, b.Locker)
		})
	}
}

// A client whose own clock is wrong learns the time of the masters.
func TestRedLockWithAClientWhoseClockIsWrong(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		voters(t, 5, func(t *testing.T, ms masters, a, b *voter) {
			each(a.links, func(l *servertest.Link) { l.Delay(30 * time.Millisecond) })
			holdfast.SkewWall(a.Locker, off)
			first := acquire(t, a.Locker, "k", holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { t.Log(e.Err) }}))
			releaseAll(t, first)
			time.Sleep(time.Second)
			second := acquire(t, b.Locker, "k")
			rises(t, first, second)
			releaseAll(t, second)
			began := time.Now()
			third := acquire(t, a.Locker, "k")
			atMost(t, began, 60*time.Millisecond)
			rises(t, second, third)
			releaseAll(t, third)
		})
	}
}

// A master that is down is told of once by each acquisition, however long it waits.
func TestRedLockTellsOfADeadMasterOnce(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t, redlock.WithNodeTimeout(5*time.Second))
		releaseAll(t, acquire(t, a.Locker, "k"))
		releaseAll(t, acquire(t, b.Locker, "k"))
		each(b.links, func(l *servertest.Link) { l.Delay(210 * time.Millisecond) }) // longer than it takes go-redis to give up a dial
		ms[1].Down()
		lock := acquire(t, a.Locker, "k")
		var one, two reported
		_, err := b.Acquire(background, "k", holdfast.WithWait(20*time.Second), holdfast.WithTrace(one.trace()))
		wantIs(t, err, holdfast.ErrNotAcquired)
		ms[0].Down()
		_, err = b.TryAcquire(background, "k", holdfast.WithTrace(two.trace()))
		wantIs(t, err, holdfast.ErrUnavailable)
		if len(one.all()) != 1 || len(two.all()) != 2 {
			t.Errorf("NodeErrors for one master and for two: %v; %v", one.all(), two.all())
		}
		each(ms[:2], (*servertest.Bubble).Up)
		_ = lock.Release(background)
	})
}

// The token that Inspect tells is that of the holder, not of somebody who tried.
func TestRedLockInspectTellsTheHoldersToken(t *testing.T) {
	voters(t, 5, func(t *testing.T, ms masters, a, b *voter) {
		releaseAll(t, acquire(t, a.Locker, "k"))
		each(a.links[3:], (*servertest.Link).CutUp)
		lock := acquire(t, a.Locker, "k")
		time.Sleep(time.Second)
		_, err := b.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
		time.Sleep(time.Millisecond)
		if s, err := b.Inspect(background, "k"); err != nil || s.Token != lock.Token() {
			t.Errorf("Inspect: %+v, %v, want token %d", s, err, lock.Token())
		}
		each(a.links[3:], (*servertest.Link).Heal)
		release(t, lock)
		synctest.Wait()
		ms.have(t, "k", 0)
	})
}
