package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestAcquireAndReleaseCostTwoCommandsAndARefusalOne(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		release(t, acquire(t, r.Locker, "order:1")) // teaches the server the scripts
		b.ResetCommands()

		lock := acquire(t, r.Locker, "order:1")
		if n := b.Commands().Total(); n != 1 {
			t.Errorf("acquire: got %d commands, want 1", n)
		}
		if _, err := r.TryAcquire(background, "order:1"); !errors.Is(err, core.ErrNotAcquired) {
			t.Errorf("got %v, want ErrNotAcquired", err)
		}
		if n := b.Commands().Total(); n != 2 {
			t.Errorf("acquire and a refused try: got %d commands, want 2", n)
		}
		release(t, lock)
		if n := b.Commands().Total(); n != 3 {
			t.Errorf("with the release: got %d commands, want 3", n)
		}
		if b.Redis.Exists("order:1") {
			t.Error("the key is still there after Release")
		}
	})
}

func TestHeldErrorTellsHolderAndTimeLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a := newReplica(t, b, core.WithLabel("api-1"), core.WithPrefix("shop:"), core.WithoutRenewal())
		c := newReplica(t, b, core.WithPrefix("shop:"))
		lock := acquire(t, a.Locker, "order:1", core.WithTTL(10*time.Second))
		time.Sleep(4 * time.Second)

		_, err := c.TryAcquire(background, "order:1")
		var held *core.HeldError
		if !errors.As(err, &held) {
			t.Fatalf("got %v, want a *HeldError", err)
		}
		if want := (core.HeldError{Key: "shop:order:1", Label: "api-1", TimeLeft: 6 * time.Second}); *held != want {
			t.Errorf("got %+v, want %+v", *held, want)
		}
		state, err := c.Inspect(background, "order:1")
		if want := (core.State{Key: "shop:order:1", Held: true, Label: "api-1", TimeLeft: 6 * time.Second, Token: lock.Token()}); err != nil || state != want {
			t.Errorf("Inspect: got %+v, %v, want %+v", state, err, want)
		}
		release(t, lock)
		state, err = c.Inspect(background, "order:1")
		if want := (core.State{Key: "shop:order:1", Token: lock.Token()}); err != nil || state != want {
			t.Errorf("Inspect of a free lock: got %+v, %v, want %+v", state, err, want)
		}
	})
}

func TestAcquireWaitsForTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		first := acquire(t, a.Locker, "k")
		begin := time.Now()
		go func() {
			time.Sleep(3 * time.Second)
			release(t, first)
		}()
		second, err := c.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited < 3*time.Second || waited > 3*time.Second+300*time.Millisecond {
			t.Errorf("got the lock after %v, want 3s and at most one pause", waited)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		release(t, second)
	})
}

func TestWaitEndsWithContextOrWithWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, a.Locker, "k")
		defer release(t, lock)
		cause := func(d time.Duration, f func() error) error {
			t.Helper()
			begin := time.Now()
			err := f()
			if got := time.Since(begin); got != d {
				t.Errorf("returned after %v, want %v", got, d)
			}
			var held *core.HeldError
			if !errors.As(err, &held) || held.Key != "k" {
				t.Errorf("got %v, want a *HeldError for k", err)
			}
			return err
		}

		err := cause(2*time.Second, func() error {
			ctx, cancel := context.WithTimeout(background, 2*time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "k")
			return err
		})
		wantIs(t, err, core.ErrNotAcquired, context.DeadlineExceeded)

		err = cause(time.Second, func() error {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(time.Second, cancel)
			_, err := c.Acquire(ctx, "k")
			return err
		})
		wantIs(t, err, core.ErrNotAcquired, context.Canceled)

		err = cause(700*time.Millisecond, func() error {
			_, err := c.Acquire(background, "k", core.WithWait(700*time.Millisecond))
			return err
		})
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: no context ended", err)
		}
		_ = cause(3*time.Second, func() error { // the last look is at the end, and is waited for
			_, err := c.Acquire(background, "k", core.WithWait(3*time.Second))
			return err
		})
		_ = cause(0, func() error {
			_, err := c.Acquire(background, "k", core.WithWait(0))
			return err
		})
		_ = cause(0, func() error {
			_, err := c.TryAcquire(background, "k")
			return err
		})

		ended, cancel := context.WithCancel(background)
		cancel()
		_, err = c.Acquire(ended, "k")
		wantIs(t, err, core.ErrUnavailable, context.Canceled)
	})
}

func TestDoHoldsUntilTheFunctionReturnsOrPanics(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		boom := errors.New("boom")
		err := r.Do(background, "k", func(ctx context.Context) error {
			held := core.Held(ctx)
			if len(held) != 1 || held[0].Key() != "k" || held[0].Token() <= 0 || held[0].Err() != nil {
				t.Errorf("Held: got %v, want the lock k", held)
			}
			if !b.Redis.Exists("k") {
				t.Error("not held inside")
			}
			return boom
		})
		if !errors.Is(err, boom) || errors.Is(err, core.ErrLost) {
			t.Errorf("got %v, want boom", err)
		}
		func() {
			defer func() {
				if v := recover(); v != "panic" {
					t.Errorf("recovered %v, want the panic to go on", v)
				}
			}()
			_ = r.Do(background, "k", func(context.Context) error { panic("panic") })
		}()
		if b.Redis.Exists("k") {
			t.Error("held after a panic")
		}
		if err := r.Do(background, "k", nil); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("Do without a function: got %v, want ErrInvalid", err)
		}
	})
}

type who struct{}

func TestContextEndsWithTheLockAndErrStaysWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		parent, cancel := context.WithTimeout(context.WithValue(background, who{}, "me"), time.Hour)
		defer cancel()
		lock, err := r.Acquire(parent, "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx := lock.Context()
		child, stop := context.WithCancel(ctx)
		defer stop()
		if ctx.Value(who{}) != "me" || ctx.Err() != nil {
			t.Errorf("got value %v, Err %v", ctx.Value(who{}), ctx.Err())
		}
		if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Hour {
			t.Errorf("Deadline: got %v, %v, want the parent's", d, ok)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.Canceled) || !isDone(child) {
			t.Error("the lock's context outlived its parent")
		}
		time.Sleep(time.Minute) // renewed although the context ended: its handler may still run
		if err := lock.Err(); err != nil || !b.Redis.Exists("k") {
			t.Errorf("got %v, want the lock held until Release", err)
		}
		if err := core.Err(ctx); err != nil {
			t.Errorf("Err of its context, which has ended: %v, want nil while the lock is held", err)
		}
		if len(core.Held(ctx)) != 1 {
			t.Error("Held lost the lock with the context")
		}
		if err := lock.Release(parent); err != nil {
			t.Errorf("Release with an ended context: %v", err)
		}
		if len(core.Held(ctx)) != 0 {
			t.Error("Held still has a released lock")
		}
		if err := core.Err(ctx); !errors.Is(err, core.ErrLost) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("Err of its context: got %v, want a loss of k", err)
		}
		if err := core.Err(parent); err != nil {
			t.Errorf("Err of a context from before: %v", err)
		}
		if err := lock.Err(); err == nil || errors.Is(err, core.ErrLost) {
			t.Errorf("Err after Release: got %v, want an error other than ErrLost", err)
		}
		if err := lock.Release(background); err != nil {
			t.Errorf("second Release: got %v, want the first one's nil", err)
		}
	})
}

func TestReleasedLockCancelsItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		release(t, lock)
		if ctx := lock.Context(); !isDone(ctx) || !errors.Is(ctx.Err(), context.Canceled) || errors.Is(context.Cause(ctx), core.ErrLost) {
			t.Errorf("got Err %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		if err := lock.Extend(background, time.Minute); err == nil {
			t.Error("Extend of a released lock succeeded")
		}
	})
}

func TestSelfDeadlockIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		same := newLocker(t, r.rdb)
		other := newReplica(t, b)
		err := r.Do(background, "a", func(ctx context.Context) error {
			return r.Do(ctx, "b", func(ctx context.Context) error {
				if got := core.Held(ctx); len(got) != 2 || got[0].Key() != "b" || got[1].Key() != "a" {
					t.Errorf("Held: got %v, want b, a", got)
				}
				for _, l := range []*core.Locker{r.Locker, same} {
					_, err := l.Acquire(ctx, "a")
					wantIs(t, err, core.ErrSelfDeadlock)
					_, err = l.TryAcquire(ctx, "b")
					wantIs(t, err, core.ErrSelfDeadlock)
				}
				_, err := other.TryAcquire(ctx, "a") // may be another Redis: asks
				wantIs(t, err, core.ErrNotAcquired)
				_, err = r.TryAcquire(background, "a") // not its context: an ordinary rival
				wantIs(t, err, core.ErrNotAcquired)
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", core.WithTTL(10*time.Second))
		before := lock.Deadline()
		if err := lock.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := b.Redis.TTL("k"); got != time.Minute {
			t.Errorf("TTL after Extend: got %v, want 1m", got)
		}
		if got, want := time.Until(lock.Deadline()), time.Minute-core.Margin(time.Minute); got != want {
			t.Errorf("Deadline after Extend: in %v, want %v", got, want)
		}
		if err := lock.Extend(background, time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // two ordinary renewals would have come by now
		if got := b.Redis.TTL("k"); got != 40*time.Second {
			t.Errorf("TTL: got %v, want 40s left of the extension", got)
		}
		if !lock.Deadline().After(before) {
			t.Error("the deadline went back")
		}
		time.Sleep(10 * time.Minute) // renewal takes over in time
		if err := lock.Err(); err != nil {
			t.Errorf("after the extension: %v", err)
		}
		wantIs(t, lock.Extend(background, time.Millisecond), core.ErrInvalid)
		wantIs(t, lock.Extend(background, 25*time.Hour), core.ErrInvalid)
		ended, cancel := context.WithCancel(background)
		cancel()
		wantIs(t, lock.Extend(ended, time.Minute), core.ErrUnavailable, context.Canceled)
		release(t, lock)
	})
}

func TestWaitMayBeHuge(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		c := newReplica(t, b)
		time.Sleep(time.Second)
		c.link.Delay(2 * time.Millisecond)
		l, err := c.Acquire(background, "k", core.WithWait(math.MaxInt64))
		if err != nil {
			t.Fatal(err)
		}
		release(t, l)
	})
}

func TestSecondReleaseReturnsTheFirstResult(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		release(t, lock)
		ctx, cancel := context.WithCancel(background)
		cancel()
		n := 0
		for range 100 {
			if lock.Release(ctx) != nil {
				n++
			}
		}
		if n > 0 {
			t.Errorf("%d of 100 differ from the first", n)
		}
	})
}

// It ends with the release itself, which must not count as a caller who gave up.
func TestReleaseMayBeGivenTheLocksOwnContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Delay(15 * time.Millisecond)
		lock := acquire(t, r.Locker, "k")
		if err := lock.Release(lock.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Nor does the end of a context that descends from it. What else ends such a context counts.
func TestReleaseMayBeGivenAChildOfTheLocksContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		r.link.Delay(150 * time.Millisecond)
		children := map[string]func(context.Context) (context.Context, context.CancelFunc){
			"a value": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithValue(c, "k", 1), func() {}
			},
			"a cancel": context.WithCancel,
			"a deadline": func(c context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(c, time.Second)
			},
		}
		for name, child := range children {
			lock := acquire(t, r.Locker, "k")
			ctx, cancel := child(lock.Context())
			if err := lock.Release(ctx); err != nil {
				t.Errorf("with %s: %v", name, err)
			}
			cancel()
		}

		nested := acquire(t, r.Locker, "k")
		inner, err := r.TryAcquire(nested.Context(), "k", core.WithReentrancy())
		if err != nil {
			t.Fatal(err)
		}
		release(t, nested)
		ctx, cancel := context.WithCancel(inner.Context())
		if err := inner.Release(ctx); err != nil {
			t.Errorf("the last handle with a child of its context: %v", err)
		}
		cancel()

		// It still ends with the deadline, and with the context of the acquisition.
		for _, deadline := range []bool{true, false} {
			r.link.Delay(0)
			parent, stop := context.WithCancel(background)
			lock, err := r.TryAcquire(parent, fmt.Sprint("slow ", deadline))
			if err != nil {
				t.Fatal(err)
			}
			r.link.Delay(10 * time.Second)
			ctx, cancel := context.WithCancel(lock.Context())
			if deadline {
				ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
			} else {
				time.AfterFunc(2*time.Second, stop)
			}
			began := time.Now()
			wantIs(t, lock.Release(ctx), core.ErrUnavailable)
			if took := time.Since(began); took != 2*time.Second {
				t.Errorf("deadline %v: the release took %v, want 2s", deadline, took)
			}
			cancel()
			stop()
		}
		r.link.Delay(0)
		time.Sleep(time.Minute)
	})
}

func TestExtendAfterReleaseSaysThatTheLockIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		release(t, lock)
		err := lock.Extend(background, time.Minute)
		wantIs(t, err, core.ErrLost)
		if !contains(err, "extend", `"k"`, "released") {
			t.Errorf("got %v", err)
		}
	})
}

// A late acquire of the tenure, sent again by the network, gets the lock once more after somebody deleted the key. The
// release names the token that was lost.
func TestReleaseOfATokenThatWasLostSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		var again []string
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if again == nil && core.ScriptName(args) == "acquire" {
				again = args
			}
			return servertest.Pass
		})
		lock := acquire(t, r.Locker, "k")
		r.link.OnCommand(nil)
		b.Redis.Del("k")
		release(t, acquire(t, other.Locker, "k"))
		cmd := make([]any, len(again))
		for i := range again {
			cmd[i] = again[i]
		}
		if token, err := other.rdb.Do(background, cmd...).Int64(); err != nil || token <= lock.Token() {
			t.Fatalf("the late acquire: %d, %v", token, err)
		}
		if err := lock.Err(); err != nil {
			t.Fatalf("it cannot know yet: %v", err)
		}
		wantIs(t, lock.Release(background), core.ErrLost)
		release(t, acquire(t, other.Locker, "k"))
	})
}

// The wait begins when Redis tells of a holder: one answer that takes longer than the wait does not use it up.
func TestSlowAnswerDoesNotUseUpTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, c)
		c.link.Delay(60 * time.Millisecond)
		lock := acquire(t, a.Locker, "k")
		time.AfterFunc(70*time.Millisecond, func() { release(t, lock) })
		got, err := c.Acquire(background, "k", core.WithWait(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		release(t, got)
	})
}
