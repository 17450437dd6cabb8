package holdfast_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A suspended machine: the monotonic clock stood still, the wall clock did not.
func TestSuspendedMachineVerifiesTheHold(t *testing.T) {
	for name, back := range map[string]time.Duration{"a rival came": 0, "a rival came, the clock was set back before": time.Hour} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				lock := acquire(t, r.Locker, "k")
				if back > 0 {
					holdfast.SkewWall(r.Locker, -back)
					time.Sleep(58 * time.Second) // renewed many times
				}
				holdfast.SkewWall(r.Locker, 10*time.Minute)
				b.Redis.Del("k") // expired by the server's clock
				rival := acquire(t, newReplica(t, b).Locker, "k")
				if lock.Context(background).Err() == nil {
					t.Error("the context's Err is nil while a rival holds")
				}
				wantIs(t, lock.Err(), holdfast.ErrLost)
				release(t, rival)
			})
		})
	}
	t.Run("the clock was set, nothing else", func(t *testing.T) {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Hour)
			b.ResetCommands()
			for range 100 {
				must(t, lock.Err())
			}
			sent(t, b, 1)
			time.Sleep(time.Hour)
			release(t, lock)
		})
	})
	for name, skew := range map[string]time.Duration{"little is left of the lease": time.Minute, "it was short": 8 * time.Second} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal(), holdfast.WithTTL(10*time.Second))
				holdfast.SkewWall(r.Locker, skew)
				b.Redis.SetTTL("k", 2*time.Second)
				if skew == time.Minute {
					must(t, lock.Err())
				}
				if got := time.Until(lock.Deadline()); got > 2*time.Second-holdfast.Margin(2*time.Second) {
					t.Errorf("deadline in %v, Redis has it for 2s, less a margin", got)
				}
				time.Sleep(2 * time.Second)
				wantIs(t, lock.Err(), holdfast.ErrLost)
			})
		})
	}
	t.Run("redis does not answer", func(t *testing.T) {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			lock := acquire(t, r.Locker, "k")
			holdfast.SkewWall(r.Locker, time.Minute)
			r.link.CutUp()
			begin := time.Now()
			wantIs(t, lock.Err(), holdfast.ErrLost)
			lasted(t, begin, time.Second)
			r.link.Heal()
		})
	})
}

// A machine that was suspended while the answer to an acquire was on its way gets no lock that is lost.
func TestSuspensionDuringAcquireHandsOutNoLostLock(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		c := newReplica(t, b)
		r.link.DelayDown(100 * time.Millisecond)
		rival := make(chan *holdfast.Lock, 1)
		time.AfterFunc(50*time.Millisecond, func() {
			holdfast.SkewWall(r.Locker, time.Minute)
			b.Redis.Del("k")
			wait(t, c, "k", rival)
		})
		lock, err := r.TryAcquire(background, "k")
		if err == nil {
			t.Errorf("a lock was handed out that is lost: %v", lock.Err())
		}
		release(t, <-rival)
	})
}

func TestVerificationAfterTheDeadlineDoesNotRevive(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(time.Second))
		holdfast.StopTimer(r.Locker) // timers are late
		time.Sleep(900 * time.Millisecond)
		holdfast.SkewWall(r.Locker, time.Minute)
		b.Redis.SetTTL("k", time.Minute) // as after a renewal that nobody heard of
		r.link.DelayDown(100 * time.Millisecond)
		wantIs(t, lock.Err(), holdfast.ErrLost)
		r.link.DelayDown(0)
		_ = lock.Release(background)
	})
}

func TestCallsReturnByTheirContextAfterASuspension(t *testing.T) {
	for what, do := range map[string]func(ctx context.Context, r *replica, lock *holdfast.Lock){
		"release": func(ctx context.Context, _ *replica, lock *holdfast.Lock) { _ = lock.Release(ctx) },
		"extend":  func(ctx context.Context, _ *replica, lock *holdfast.Lock) { _ = lock.Extend(ctx, time.Minute) },
		"acquire": func(ctx context.Context, r *replica, _ *holdfast.Lock) { _, _ = r.Acquire(ctx, "k") },
	} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
			do(ctx, r, lock)
			lasted(t, begin, 0, 70*time.Millisecond)
			r.link.Heal()
			_ = lock.Release(background)
		})
	}
}

// A lock that only its release knows is not taken for one that was dropped.
func TestLockIsNotForgottenWhileItIsReleased(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
		fine(t, <-done, "Release")
	})
}

// Two callers look at one lock after a suspension, with a server that is silent: one asks, the other waits for that, and both
// know in the time that one answer is waited for.
func TestSuspendedMachineIsAskedAboutByTwo(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			v := ms.voter(t, redlock.WithQuarantine(0))
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
			lasted(t, began, 0, time.Second)
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
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				busy := acquire(t, newReplica(t, b).Locker, "l")
				ctx := bounded(t, time.Second)
				began := time.Now()
				done := make(chan error, 1)
				go func() { done <- call(ctx, r.Locker) }()
				time.Sleep(500 * time.Millisecond) // it has k, and waits for l
				holdfast.SkewWall(r.Locker, time.Minute)
				r.link.CutUp()
				wantIs(t, <-done, context.DeadlineExceeded)
				lasted(t, began, time.Second, 20*time.Millisecond) // that a release takes under an ended context
				r.link.Heal()
				release(t, busy)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A process that was stopped past its lease (SIGSTOP, a long garbage collection, a live migration) finds out with the first
// look it takes.
func TestPausedProcessKnowsAtOnce(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	lines := make(chan string)
	child, err := servertest.StartChild(pausedEnv+"="+server.Addr(), func(r io.Reader) error {
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
		return nil
	})
	must(t, err)
	defer child.Kill()
	next := func() (line string) {
		t.Helper()
		within(t, "word of the child", func() { line = <-lines })
		return line
	}
	var token int64
	if _, err := fmt.Sscanf(next(), "held %d", &token); err != nil {
		t.Fatal(err)
	}
	if err := child.Pause(); err != nil {
		t.Skip(err)
	}
	lock := await(t, newLocker(t, server.Client()), "k")
	if lock.Token() <= token {
		t.Errorf("token %d after %d", lock.Token(), token)
	}
	child.Resume()
	if got, want := next(), "woke lost=true context=true deadline=true done=true"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := next(); !strings.Contains(got, "lost") {
		t.Errorf("Release in the child: %q, want a loss", got)
	}
	fine(t, lock.Err(), "the woken process took the lock from its successor")
	release(t, lock)
}

const pausedEnv = "HOLDFAST_TEST_PAUSED_HOLDER" // set in a process that is to be paused: where the server is

// bePaused is what such a process does: it looks at its lock until that is lost.
func bePaused(addr string) error {
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: addr}), holdfast.WithTTL(time.Second))
	if err != nil {
		return err
	}
	lock, err := l.Acquire(background, "k")
	if err != nil {
		return err
	}
	fmt.Println("held", lock.Token())
	for last := time.Now(); ; {
		now := time.Now()
		// After the stop this is the first that the process does.
		err, ctx, late := lock.Err(), lock.Context(background), time.Now().After(lock.Deadline())
		if now.Sub(last) > 900*time.Millisecond || err != nil {
			fmt.Printf("woke lost=%v context=%v deadline=%v done=%v\n", err != nil, ctx.Err() != nil, late, isDone(ctx))
			fmt.Println("released", lock.Release(background))
			return nil
		}
		last = now
	}
}
