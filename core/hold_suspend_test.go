package holdfast_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A suspended machine: the monotonic clock stood still, the wall clock did not.
func TestSuspendedMachineVerifiesTheHold(t *testing.T) {
	t.Run("a rival came", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r, c := newReplica(t, b), newReplica(t, b)
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Minute)
			b.Redis.Del("k") // expired by the server's clock
			rival := acquire(t, c.Locker, "k")
			if lock.Context(background).Err() == nil {
				t.Error("the context's Err is nil while a rival holds")
			}
			wantIs(t, lock.Err(), holdfast.ErrLost)
			release(t, rival)
		})
	})
	t.Run("the clock was set, nothing else", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Hour)
			b.ResetCommands()
			for range 100 {
				if err := lock.Err(); err != nil {
					t.Fatal(err)
				}
			}
			if n := b.Commands().Total(); n > 2 { // EVALSHA, and EVAL as the script is new to the server
				t.Errorf("%d commands to verify once", n)
			}
			time.Sleep(time.Hour)
			if err := lock.Err(); err != nil {
				t.Error(err)
			}
			release(t, lock)
		})
	})
	t.Run("little is left of the lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal(), holdfast.WithTTL(10*time.Second))
			holdfast.SkewWall(r.Locker, time.Minute)
			b.Redis.SetTTL("k", 2*time.Second)
			if err := lock.Err(); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(lock.Deadline()); got > 2*time.Second {
				t.Errorf("deadline in %v, Redis has it for 2s", got)
			}
			time.Sleep(2 * time.Second)
			wantIs(t, lock.Err(), holdfast.ErrLost)
		})
	})
	t.Run("redis does not answer", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Minute)
			r.link.CutUp()
			begin := time.Now()
			wantIs(t, lock.Err(), holdfast.ErrLost)
			if d := time.Since(begin); d != time.Second {
				t.Errorf("Err took %v, want 1s", d)
			}
			r.link.Heal()
		})
	})
}

func TestSuspensionIsSeenAfterTheClockWasSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		holdfast.SkewWall(r.Locker, -time.Hour)
		time.Sleep(58 * time.Second) // renewed many times
		holdfast.SkewWall(r.Locker, 10*time.Minute)
		b.Redis.Del("k") // expired by the server's clock
		rival := acquire(t, c.Locker, "k")
		wantIs(t, lock.Err(), holdfast.ErrLost)
		release(t, rival)
	})
}

func TestSuspensionDuringAcquireHandsOutNoLostLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		r.link.DelayDown(100 * time.Millisecond)
		rival := make(chan *holdfast.Lock, 1)
		time.AfterFunc(50*time.Millisecond, func() {
			holdfast.SkewWall(r.Locker, time.Minute)
			b.Redis.Del("k")
			rival <- acquire(t, c.Locker, "k")
		})
		lock, err := r.TryAcquire(background, "k")
		if err == nil {
			t.Errorf("a lock was handed out that is lost: %v", lock.Err())
		}
		release(t, <-rival)
	})
}

func TestDeadlineAfterAShortSuspension(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(time.Minute), holdfast.WithoutRenewal())
		holdfast.SkewWall(r.Locker, 50*time.Second)
		b.Redis.SetTTL("k", 10*time.Second)
		if d := time.Until(lock.Deadline()); d > 10*time.Second {
			t.Errorf("deadline in %v, lease in 10s", d)
		}
		_ = lock.Release(background)
	})
}

func TestVerificationAfterTheDeadlineDoesNotRevive(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(time.Second))
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		holdfast.StopTimer(r.Locker) // timers are late
		time.Sleep(900 * time.Millisecond)
		holdfast.SkewWall(r.Locker, time.Minute)
		r.link.DelayDown(100 * time.Millisecond)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		r.link.DelayDown(0)
		_ = lock.Release(background)
	})
}

func TestCallsReturnByTheirContextAfterASuspension(t *testing.T) {
	for _, what := range []string{"release", "extend", "acquire"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Minute)
			r.link.CutUp()
			parent := background
			if what == "acquire" {
				parent = lock.Context(background)
			}
			ctx, cancel := context.WithTimeout(parent, 50*time.Millisecond)
			defer cancel()
			begin := time.Now()
			switch what {
			case "release":
				_ = lock.Release(ctx)
			case "extend":
				_ = lock.Extend(ctx, time.Minute)
			case "acquire":
				_, _ = r.Acquire(ctx, "k")
			}
			if d := time.Since(begin); d > 70*time.Millisecond {
				t.Errorf("%s took %v", what, d)
			}
			r.link.Heal()
			_ = lock.Release(background)
		})
	}
}

func TestLockIsNotForgottenWhileItIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		done := make(chan error, 1)
		func() {
			lock := acquire(t, r.Locker, "k")
			time.Sleep(4800 * time.Millisecond)
			holdfast.SkewWall(r.Locker, time.Minute)
			r.link.DelayDown(400 * time.Millisecond)
			go func() { done <- lock.Release(background) }()
		}()
		time.Sleep(10 * time.Millisecond)
		for range 5 {
			runtime.GC()
		}
		if err := <-done; err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// Two callers look at one lock after a suspension, with a server that is silent: one asks, the other waits for that, and both
// know in the time that one answer is waited for.
func TestSuspendedMachineIsAskedAboutByTwo(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			v := ms.voter(t, holdfast.WithQuarantine(0))
			defer func() { time.Sleep(5 * time.Minute) }()
			lock := acquire(t, v.Locker, "k")
			for _, l := range v.links {
				l.CutDown()
			}
			holdfast.SkewWall(v.Locker, time.Hour)
			began := time.Now()
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() { wantIs(t, lock.Err(), holdfast.ErrLost) })
			}
			all.Wait()
			if took := time.Since(began); took > time.Second {
				t.Errorf("took %v", took)
			}
			for _, l := range v.links {
				l.Heal()
			}
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			shutdown(t, v.Locker)
		})
	}
}

// A call whose context carries a lock returns by that context also where the machine was suspended while it waited, and what it
// has would have to be confirmed by a Redis that is silent.
func TestCallsUnderALockReturnInTimeAfterASuspension(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, l *holdfast.Locker) error{
		"DoAll": func(ctx context.Context, l *holdfast.Locker) error {
			return l.DoAll(ctx, []string{"k", "l"}, func(context.Context) error { return nil })
		},
		"Acquire": func(ctx context.Context, l *holdfast.Locker) error {
			lock, err := l.Acquire(ctx, "k")
			if err == nil {
				_, err = l.Acquire(lock.Context(ctx), "l")
				_ = lock.Release(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r, other := newReplica(t, b), newReplica(t, b)
				busy := acquire(t, other.Locker, "l")
				ctx, cancel := context.WithTimeout(background, time.Second)
				defer cancel()
				began := time.Now()
				done := make(chan error, 1)
				go func() { done <- call(ctx, r.Locker) }()
				time.Sleep(500 * time.Millisecond) // it has k, and waits for l
				holdfast.SkewWall(r.Locker, time.Minute)
				r.link.CutUp()
				wantIs(t, <-done, context.DeadlineExceeded)
				if late := time.Since(began) - time.Second; late > 20*time.Millisecond { // that a release takes under an ended context
					t.Errorf("it returned %v after its context", late)
				}
				r.link.Heal()
				release(t, busy)
				time.Sleep(time.Minute)
			})
		})
	}
}
