package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestContextEndsWithTheLockAndErrStaysWithTheLease(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		parent, cancel := context.WithTimeout(context.WithValue(background, who{}, "me"), time.Hour)
		defer cancel()
		lock := acquire(t, r.Locker, "k")
		ctx := lock.Context(parent)
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
		if lock.Err() != nil || holdfast.Err(ctx) != nil || len(holdfast.Held(ctx)) != 1 || !b.Redis.Exists("k") {
			t.Errorf("got %v and %v, want the lock held until Release", lock.Err(), holdfast.Err(ctx))
		}
		fine(t, lock.Release(parent), "Release with an ended context")
		if err := holdfast.Err(ctx); len(holdfast.Held(ctx)) != 0 || !errors.Is(err, holdfast.ErrLost) || !contains(err, `"k"`) {
			t.Errorf("of its context: %v, Err %v, want a loss of k", holdfast.Held(ctx), err)
		}
		fine(t, holdfast.Err(parent), "Err of a context from before")
		if err := lock.Err(); err == nil || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Err after Release: got %v, want an error other than ErrLost", err)
		}
		if ctx := lock.Context(background); !isDone(ctx) || !errors.Is(ctx.Err(), context.Canceled) || errors.Is(context.Cause(ctx), holdfast.ErrLost) {
			t.Errorf("a context of a released lock: Err %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// The context of Acquire bounds the acquisition alone, as in libraries that know no other one: a program that cancels it when
// it has the lock, which vet asks for, keeps the lock and its context.
func TestContextOutlivesThatOfTheAcquisition(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lockIt := func(ctx context.Context) (*holdfast.Lock, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return r.Acquire(ctx, "k")
		}
		request, done := context.WithCancel(background)
		lock, err := lockIt(request)
		must(t, err)
		ctx := lock.Context(request)
		time.Sleep(time.Minute)
		if ctx.Err() != nil || lock.Err() != nil || lock.Context(request).Err() != nil {
			t.Errorf("after a minute: %v, %v", ctx.Err(), lock.Err())
		}
		done()
		synctest.Wait()
		if !isDone(ctx) || lock.Err() != nil {
			t.Errorf("after the request: context %v, lock %v", ctx.Err(), lock.Err())
		}
		later := lock.Context(background)
		_ = b.Redis.Set("k", "somebody else's")
		time.Sleep(6 * time.Second)
		wantIs(t, context.Cause(later), holdfast.ErrLost)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
	})
}

// Under a lock that is held for long contexts come and go, and leave nothing behind.
func TestContextsOfALongHoldAreLetGo(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k")
		first := lock.Context(background)
		most := 0
		for range 10_000 {
			parent, cancel := context.WithCancel(background)
			lock.Context(parent)
			cancel()
			most = max(most, holdfast.Contexts(lock))
		}
		if most > 8 {
			t.Errorf("%d contexts are kept, of which one is alive", most)
		}
		release(t, lock)
		if !isDone(first) {
			t.Error("the first one outlived the lock")
		}
	})
}

// A call that asks for the context of a lock while it ends gets one that ends too.
func TestContextOfALockThatEndsMeanwhile(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for range 300 {
			lock := await(t, r.Locker, "k")
			released := make(chan struct{})
			go func() { release(t, lock); close(released) }()
			ctx := lock.Context(background)
			<-ctx.Done() // or the bubble finds that nothing can happen any more
			<-released
			if !isDone(lock.Context(background)) {
				t.Fatal("a later one is not over")
			}
		}
	})
}

func TestReentrancyNestsByContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b, holdfast.WithReentrancy()), newReplica(t, b)
		warm(t, r)
		err := r.Do(background, "k", func(ctx context.Context) error {
			outer := holdfast.Held(ctx)[0]
			b.ResetCommands()
			err := r.Do(ctx, "k", func(ctx context.Context) error {
				held := holdfast.Held(ctx)
				if len(held) != 1 || held[0] == outer || held[0].Token() != outer.Token() || held[0].Err() != nil {
					t.Errorf("Held inside: %v, want the nested handle alone, with the outer token", held)
				}
				return r.Do(ctx, "other", func(ctx context.Context) error {
					return r.Do(ctx, "k", func(ctx context.Context) error {
						if held := holdfast.Held(ctx); len(held) != 2 || held[0].Key() != "k" || held[1].Key() != "other" {
							t.Errorf("Held in the innermost: %v", held)
						}
						return nil
					})
				})
			})
			if n := b.Commands()["evalsha"] + b.Commands()["eval"]; n != 2 { // of the lock "other"
				t.Errorf("%d commands, nesting takes none", n)
			}
			if ctx.Err() != nil || outer.Err() != nil || !b.Redis.Exists("k") {
				t.Errorf("the nested release ended the outer hold: %v, %v", ctx.Err(), outer.Err())
			}
			return err
		})
		fine(t, err)
		unheld(t, b, "k")
		// Only where it is on, and only for the context that holds.
		err = c.Do(background, "k", func(ctx context.Context) error {
			_, err := c.TryAcquire(ctx, "k")
			wantIs(t, err, holdfast.ErrSelfDeadlock)
			_, err = c.TryAcquire(background, "k", holdfast.WithReentrancy())
			wantIs(t, err, holdfast.ErrNotAcquired)
			_, err = r.TryAcquire(ctx, "k") // another client, perhaps another Redis
			wantIs(t, err, holdfast.ErrNotAcquired)
			nested, err := c.TryAcquire(ctx, "k", holdfast.WithReentrancy())
			if err != nil {
				return err
			}
			return nested.Release(ctx)
		})
		fine(t, err)
		shutdown(t, r.Locker)
		shutdown(t, c.Locker)
	})
}

func TestLastHandleFreesWhateverTheOrder(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		outer := acquire(t, r.Locker, "k")
		nested, err := r.TryAcquire(outer.Context(background), "k")
		must(t, err)
		release(t, outer)
		release(t, outer) // counts once
		if nested.Err() != nil || nested.Context(background).Err() != nil || !b.Redis.Exists("k") {
			t.Errorf("the nested handle lost the hold: %v", nested.Err())
		}
		if held := holdfast.Held(nested.Context(background)); len(held) != 1 || held[0] != nested {
			t.Errorf("Held: %v", held)
		}
		time.Sleep(time.Minute)
		if nested.Err() != nil {
			t.Error("not renewed for the nested handle")
		}
		release(t, nested)
		if b.Redis.Exists("k") || !isDone(nested.Context(background)) || !isDone(outer.Context(background)) {
			t.Error("not freed by the last handle")
		}
		release(t, nested)
	}, holdfast.WithReentrancy())
}

func TestLossEndsNestedHandles(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithReentrancy())
		outer := acquire(t, r.Locker, "k")
		nested, _ := r.TryAcquire(outer.Context(background), "k")
		apart, _ := r.TryAcquire(context.WithoutCancel(outer.Context(background)), "k")
		brief, _ := r.TryAcquire(outer.Context(background), "k")
		release(t, brief)
		if !isDone(brief.Context(background)) || isDone(nested.Context(background)) {
			t.Error("a nested context should end with its own handle")
		}
		_ = b.Redis.Set("k", "somebody else's")
		time.Sleep(6 * time.Second)
		for i, lock := range []*holdfast.Lock{outer, nested, apart} {
			if !isDone(lock.Context(background)) {
				t.Errorf("handle %d: Done is open after the loss", i)
			}
			wantIs(t, lock.Err(), holdfast.ErrLost)
			wantIs(t, context.Cause(lock.Context(background)), holdfast.ErrLost)
			wantIs(t, lock.Release(background), holdfast.ErrLost)
		}
		// Past the deadline the context's Err needs no timer, for a nested one either.
		outer = acquire(t, r.Locker, "l", holdfast.WithoutRenewal())
		apart, _ = r.TryAcquire(context.WithoutCancel(outer.Context(background)), "l")
		holdfast.StopTimer(r.Locker)
		time.Sleep(time.Until(outer.Deadline()))
		if isDone(apart.Context(background)) || apart.Context(background).Err() == nil {
			t.Error("Err of a nested context is nil at the deadline")
		}
	})
}

// Calls nest beside each other, and a handler that goes on during a Shutdown may nest.
func TestConcurrentNesting(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		outer := acquire(t, r.Locker, "k")
		done, nest := make(chan error), func() {
			if err := r.Do(outer.Context(background), "k", func(context.Context) error { runtime.Gosched(); return nil }); err != nil {
				t.Error(err)
			}
		}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 20 {
					nest()
				}
			})
		}
		wg.Wait()
		if !b.Redis.Exists("k") || outer.Err() != nil {
			t.Error("freed under the outer handle")
		}
		go func() { done <- r.Shutdown(background) }()
		synctest.Wait()
		nest()
		release(t, outer)
		unheld(t, b, "k")
		fine(t, <-done)
	}, holdfast.WithReentrancy())
}

type who struct{}
