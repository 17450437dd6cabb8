package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// leading has a replica lead until ctx ends, and counts those that see a live context.
func leading(ctx context.Context, r *replica, live *atomic.Int32, fn func(context.Context) error, opts ...holdfast.CallOption) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- r.Lead(ctx, "relay", func(ctx context.Context) error {
			live.Add(1)
			defer live.Add(-1)
			return fn(ctx)
		}, opts...)
	}()
	synctest.Wait()
	return done
}

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// One leads at a time; the next within a round trip of a graceful end, with a larger term, and within the lease of a crash.
func TestLeadOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var rs []*replica
		for _, host := range []string{"one", "two", "three"} {
			rs = append(rs, newReplica(t, b, holdfast.WithLabel(host)))
			openInbox(t, b, rs[len(rs)-1])
		}
		var live atomic.Int32
		var mu sync.Mutex
		var terms []int64
		var done []<-chan error
		var cancels []context.CancelFunc
		for _, r := range rs {
			ctx, cancel := context.WithCancel(background)
			cancels = append(cancels, cancel)
			done = append(done, leading(ctx, r, &live, func(ctx context.Context) error {
				mu.Lock()
				terms = append(terms, holdfast.Held(ctx)[0].Token())
				mu.Unlock()
				if n := live.Load(); n != 1 {
					t.Errorf("%d lead", n)
				}
				return untilEnd(ctx)
			}))
		}
		leader := func(want string, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			if state, err := rs[0].Inspect(background, "relay"); err != nil || state.Label != want {
				t.Errorf("%+v, %v, want %s", state, err, want)
			}
		}
		leader("one", time.Minute)
		cancels[0]()
		if err := <-done[0]; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `lead "relay"`) {
			t.Error(err)
		}
		synctest.Wait()
		leader("two", time.Millisecond)
		rs[1].link.CutUp() // it is heard of no more, and knows by its clock
		leader("three", 15*time.Second+time.Second)
		if n := live.Load(); n != 1 {
			t.Errorf("%d lead", n)
		}
		rs[1].link.Heal()
		time.Sleep(time.Minute)
		cancels[2]()
		<-done[2]
		leader("two", time.Second)
		cancels[1]()
		<-done[1]
		for i := 1; i < len(terms); i++ {
			if terms[i] <= terms[i-1] {
				t.Errorf("terms %v", terms)
			}
		}
		if len(terms) != 4 {
			t.Errorf("terms %v", terms)
		}
		empty(t, b, rs...)
	})
}

func TestLeadReturns(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		var live atomic.Int32
		// nil: it is through.
		if err := <-leading(background, r, &live, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if b.Redis.Exists("relay") {
			t.Error("not released")
		}
		// A release that Redis does not confirm.
		err := <-leading(background, r, &live, func(context.Context) error {
			r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseReplyAndClose })
			return nil
		})
		if !errors.Is(err, holdfast.ErrUnavailable) {
			t.Error(err)
		}
		r.link.OnCommand(nil)
		time.Sleep(time.Minute)

		// The end of ctx leaves the release the time that it needs.
		ctx, cancel := context.WithCancel(background)
		var ended error
		// That the function ends with an error of its context is no failure.
		asTold := func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("relay: %w", ctx.Err()) }
		done := leading(ctx, r, &live, asTold, holdfast.WithTrace(&holdfast.Trace{Ended: func(e holdfast.Event) { ended = e.Err }}))
		r.link.Delay(50 * time.Millisecond)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || ended != nil {
			t.Error(err, ended)
		}
		r.link.Delay(0)

		// Under its own lock.
		_ = r.Do(background, "relay", func(ctx context.Context) error {
			err := <-leading(ctx, r, &live, untilEnd, holdfast.WithReentrancy())
			if !errors.Is(err, holdfast.ErrSelfDeadlock) {
				t.Error(err)
			}
			return nil
		})
		var none context.Context
		for name, err := range map[string]error{
			"no ctx": r.Lead(none, "relay", untilEnd),
			"no fn":  r.Lead(background, "relay", nil),
			"name":   r.Lead(background, "", untilEnd),
			"wait":   r.Lead(background, "relay", untilEnd, holdfast.WithWait(time.Second)),
			"renew":  r.Lead(background, "relay", untilEnd, holdfast.WithoutRenewal()),
			"limit":  r.Lead(background, "relay", untilEnd, holdfast.WithLimit(2)),
			"shared": r.Lead(background, "relay", untilEnd, holdfast.WithShared()),
			"id":     r.Lead(background, "relay", untilEnd, holdfast.WithReentryID("x")),
			"option": r.Lead(background, "relay", untilEnd, nil),
		} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		waits := newReplica(t, b, holdfast.WithWait(time.Second)) // of the Locker: it does not count
		held := acquire(t, r.Locker, "relay")
		ctx, cancel = context.WithTimeout(background, time.Minute)
		defer cancel()
		var told *holdfast.HeldError
		if err := <-leading(ctx, waits, &live, untilEnd); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &told) {
			t.Error(err)
		}
		release(t, held)
		empty(t, b, r, waits)
		if err := <-leading(background, r, &live, untilEnd); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
	})
}

// An error is told of, and the next in line leads at once; this one stands again after pauses that grow.
func TestLeadAfterErrors(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, other)
		var began []time.Time
		var told atomic.Int32
		ctx, cancel := context.WithCancel(background)
		trace := &holdfast.Trace{Ended: func(e holdfast.Event) {
			if errors.Is(e.Err, errWork) {
				told.Add(1)
			}
		}}
		long := 9
		err := r.Lead(ctx, "relay", func(ctx context.Context) error {
			began = append(began, time.Now())
			switch len(began) {
			case 2:
				if lk := acquire(t, other.Locker, "relay-2"); lk.Err() == nil {
					release(t, lk)
				}
			case long:
				time.Sleep(2 * time.Minute)
			case long + 2:
				cancel()
			}
			return errWork
		}, holdfast.WithTrace(trace))
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if int(told.Load()) != len(began) {
			t.Errorf("told of %d errors of %d", told.Load(), len(began))
		}
		want := time.Second
		for i := 1; i < len(began); i++ {
			d := began[i].Sub(began[i-1])
			if i == long { // it led for two minutes
				d, want = d-2*time.Minute, time.Second
			}
			if d < want*3/4 || d > want+50*time.Millisecond {
				t.Errorf("pause %d is %v, want %v", i, d, want)
			}
			want = min(2*want, 30*time.Second)
		}
		// The next in line does not wait for that.
		var live atomic.Int32
		ctx, cancel = context.WithCancel(background)
		fails := make(chan struct{})
		first := leading(ctx, r, &live, func(ctx context.Context) error {
			<-fails
			return errWork
		})
		second := call(background, other, "relay")
		at := time.Now()
		close(fails)
		lk := got(t, second)
		if d := time.Since(at); d > 10*time.Millisecond {
			t.Errorf("the next leads after %v", d)
		}
		time.Sleep(time.Minute)
		release(t, lk)
		cancel()
		<-first
		empty(t, b, r, other)
	})
}

// A lost leadership ends fn's context, and the next leads beside a function that does not look; it is not released under it, and
// stands again at once when it has returned.
func TestLeadThatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, holdfast.WithTTL(3*time.Second)), newReplica(t, b)
		ctx, cancel := context.WithCancel(background)
		var mu sync.Mutex
		var terms []int64
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(terms)
		}
		returns := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- r.Lead(ctx, "relay", func(ctx context.Context) error {
				lk := holdfast.Held(ctx)[0]
				mu.Lock()
				terms = append(terms, lk.Token())
				mu.Unlock()
				if count() == 1 {
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), holdfast.ErrLost) || !errors.Is(holdfast.Err(ctx), holdfast.ErrLost) {
						t.Error(context.Cause(ctx))
					}
					<-returns
					return errWork
				}
				return untilEnd(ctx)
			})
		}()
		synctest.Wait()
		b.Redis.Del("relay")
		next := acquire(t, other.Locker, "relay")
		time.Sleep(5 * time.Second)
		if next.Err() != nil || count() != 1 {
			t.Error(next.Err(), count())
		}
		release(t, next)
		time.Sleep(time.Second)
		if b.Redis.Exists("relay") {
			t.Error("it stands while its function runs")
		}
		close(returns)
		time.Sleep(10 * time.Millisecond)
		if count() != 2 || terms[1] <= next.Token() {
			t.Errorf("terms %v after %d", terms, next.Token())
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		empty(t, b, r, other)
	})
}

// Redis away: it goes on, and leads when Redis is back.
func TestLeadWithoutRedis(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(2*time.Second))
		ctx, cancel := context.WithCancel(background)
		var live atomic.Int32
		b.Down()
		done := leading(ctx, r, &live, untilEnd)
		time.Sleep(10 * time.Minute)
		if n := live.Load(); n != 0 {
			t.Errorf("%d lead", n)
		}
		b.Up()
		time.Sleep(40 * time.Second)
		if n := live.Load(); n != 1 {
			t.Errorf("%d lead", n)
		}
		b.Down()
		time.Sleep(2 * time.Second)
		if n := live.Load(); n != 0 {
			t.Errorf("%d lead", n)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		b.Up()
		empty(t, b, r)
	})
}

// Shutdown ends the function's context, waits for it, and the lock is free.
func TestLeadAtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		var live atomic.Int32
		done := leading(background, r, &live, func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), holdfast.ErrClosed) || holdfast.Err(ctx) != nil {
				t.Error(context.Cause(ctx), holdfast.Err(ctx))
			}
			time.Sleep(3 * time.Second)
			if !b.Redis.Exists("relay") {
				t.Error("released under it")
			}
			return nil
		})
		began := time.Now()
		shutdown(t, r.Locker)
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("it took %v", d)
		}
		if err := <-done; !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
		if b.Redis.Exists("relay") {
			t.Error("left behind")
		}
	})
}

// The function goes on after the end of its context, and is still alone.
func TestLeadReleasesWhenItsFunctionHasReturned(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, holdfast.WithTTL(time.Second)), newReplica(t, b)
		openInbox(t, b, other)
		var live atomic.Int32
		ctx, cancel := context.WithCancel(background)
		done := leading(ctx, r, &live, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(30 * time.Second)
			if err := holdfast.Err(ctx); err != nil {
				t.Error(err)
			}
			return nil
		})
		next := call(background, other, "relay")
		began := time.Now()
		cancel()
		lock := got(t, next)
		if d := time.Since(began); d < 30*time.Second || d > 30*time.Second+10*time.Millisecond {
			t.Errorf("the next leads after %v, want 30s", d)
		}
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		release(t, lock)
		empty(t, b, r, other)
	})
}

func TestLeadThatPanics(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		func() {
			defer func() {
				if p := recover(); p != "fn" {
					t.Error(p)
				}
			}()
			_ = r.Lead(background, "relay", func(context.Context) error { panic("fn") })
		}()
		if b.Redis.Exists("relay") {
			t.Error("not released")
		}
		empty(t, b, r)
	})
}

func TestLeadOnSeveralMasters(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		var live, most atomic.Int32
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(background)
		for range 3 {
			v := ms.voter(t)
			all.Go(func() {
				_ = v.Lead(ctx, "relay", func(ctx context.Context) error {
					most.Store(max(most.Load(), live.Add(1)))
					defer live.Add(-1)
					time.Sleep(time.Second)
					return errWork
				})
			})
		}
		time.Sleep(time.Minute)
		cancel()
		all.Wait()
		if most.Load() != 1 {
			t.Errorf("%d led at once", most.Load())
		}
	})
}

// A leader holds for as long as it can: that is nothing to report. A WithWait of the Locker is for its other calls.
func TestLeadIsNoLongHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var long, renewed atomic.Int32
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second), holdfast.WithWait(time.Second), holdfast.WithTrace(&holdfast.Trace{
			LongHold: func(holdfast.Event) { long.Add(1) },
			Renewed:  func(holdfast.Event) { renewed.Add(1) },
		}))
		ctx, end := context.WithTimeout(background, 10*time.Minute)
		defer end()
		if err := r.Lead(ctx, "relay", untilEnd); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if long.Load() != 0 || renewed.Load() == 0 {
			t.Errorf("%d long holds of %d renewals", long.Load(), renewed.Load())
		}
	})
}
