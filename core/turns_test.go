package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Within a process the lock is passed on without a command, each time with a larger token, first come first served.
func TestQueueOfOneProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		b.ResetCommands()
		const n = 200
		var order []int
		var tokens []int64
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				lock, err := r.Acquire(background, "k")
				if err != nil {
					t.Error(err)
					return
				}
				order, tokens = append(order, i), append(tokens, lock.Token())
				if lock.Err() != nil {
					t.Error(lock.Err())
				}
				release(t, lock)
			})
			synctest.Wait()
		}
		if got := b.Commands().Total(); got != 0 {
			t.Errorf("%d commands while %d wait", got, n)
		}
		last := lock.Token()
		release(t, lock)
		all.Wait()
		for i := range n {
			if order[i] != i {
				t.Fatalf("served in the order %v", order)
			}
			if tokens[i] <= last {
				t.Fatalf("token %d after %d", tokens[i], last)
			}
			last = tokens[i]
		}
		// The first tenure is over with the lock above, and the others are handed over 64 times each, as all that takes no time.
		if got := b.Commands().Total(); got > n/10 {
			t.Errorf("%d commands for %d hand-overs", got, n)
		} else {
			t.Logf("%d commands for %d hand-overs", got, n)
		}
		shutdown(t, r.Locker)
		time.Sleep(2 * time.Minute)
		if keys := b.Redis.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
	})
}

// Only what the next one wants of the tenure is handed over; the rest goes through Redis, in the same order.
func TestQueueOfMixedCalls(t *testing.T) {
	for _, c := range []struct {
		name     string
		first    []holdfast.CallOption
		second   []holdfast.CallOption
		commands int64 // for the hand-over
	}{
		{"the same", nil, nil, 0},
		{"max hold", []holdfast.CallOption{holdfast.WithMaxHold(time.Minute)}, []holdfast.CallOption{holdfast.WithMaxHold(30 * time.Second)}, 0},
		{"traces", []holdfast.CallOption{holdfast.WithTrace(&holdfast.Trace{})}, nil, 0},
		{"another TTL", nil, []holdfast.CallOption{holdfast.WithTTL(time.Second)}, 2},
		{"another label", nil, []holdfast.CallOption{holdfast.WithLabel("b")}, 2},
		{"no renewal before", []holdfast.CallOption{holdfast.WithoutRenewal()}, nil, 2},
		{"no renewal after", nil, []holdfast.CallOption{holdfast.WithoutRenewal()}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b)
				openInbox(t, b, r)
				zero := acquire(t, r.Locker, "k")
				one, two := call(background, r, "k", c.first...), call(background, r, "k", c.second...)
				release(t, zero)
				lock := got(t, one) // a tenure that may be handed over, as it was queued for
				b.ResetCommands()
				release(t, lock)
				next := got(t, two)
				if n := b.Commands().Total(); n != c.commands {
					t.Errorf("%d commands, want %d", n, c.commands)
				}
				if next.Token() <= lock.Token() {
					t.Errorf("token %d after %d", next.Token(), lock.Token())
				}
				if err := lock.Err(); err == nil {
					t.Error("the first one still has it")
				}
				notLate(t, b, next)
				release(t, next)
				empty(t, b, r)
			})
		})
	}
}

// WithMaxHold counts for each hold by itself, though the tenure is older.
func TestQueueCountsMaxHoldForEach(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithLocalHandover(64, time.Hour), holdfast.WithMaxHold(time.Minute))
		openInbox(t, b, r)
		zero := got(t, call(background, r, "k"))
		one, two := call(background, r, "k"), call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		time.Sleep(42 * time.Second) // between two renewals
		b.ResetCommands()
		release(t, lock)
		next := got(t, two)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands to hand over", n)
		}
		began := time.Now()
		<-next.Context(background).Done()
		if held := time.Since(began); held != time.Minute {
			t.Errorf("held for %v", held)
		}
		wantIs(t, next.Release(background), holdfast.ErrLost)
		empty(t, b, r)
	})
}

// The bounds: after so many hand-overs, or so long, another process has its turn.
func TestQueueYields(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  []holdfast.Option
		hold  time.Duration
		local int // hand-overs before the other process
	}{
		{"by count", []holdfast.Option{holdfast.WithLocalHandover(5, time.Hour)}, time.Millisecond, 5},
		{"by time", []holdfast.Option{holdfast.WithLocalHandover(250, 100*time.Millisecond)}, 30 * time.Millisecond, 3},
		{"off", []holdfast.Option{holdfast.WithLocalHandover(0, 0)}, time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r, other := newReplica(t, b, c.opts...), newReplica(t, b)
				warm(t, r)
				warm(t, other)
				zero := acquire(t, r.Locker, "k")
				var calls []<-chan result
				calls = append(calls, call(background, r, "k"))
				release(t, zero)
				first := got(t, calls[0])
				for range 20 {
					calls = append(calls, call(background, r, "k"))
				}
				theirs := call(background, other, "k")
				time.Sleep(c.hold)
				release(t, first)
				served := 0
				for i := 1; ; {
					synctest.Wait()
					select {
					case res := <-theirs:
						if res.err != nil {
							t.Fatal(res.err)
						}
						if c.local != 0 && served != c.local {
							t.Errorf("the other process came after %d hand-overs, want %d", served, c.local)
						}
						if c.local == 0 && served != 20 { // as they came
							t.Errorf("the other process came after %d", served)
						}
						release(t, res.lock)
						theirs = nil
					case res := <-calls[i]:
						if res.err != nil {
							t.Fatal(res.err)
						}
						served++
						time.Sleep(c.hold)
						release(t, res.lock)
						if i++; i == len(calls) {
							i = 0 // no more
						}
					case <-time.After(time.Minute):
						if i != 0 || theirs != nil {
							t.Fatal("stuck")
						}
						empty(t, b, r, other)
						return
					}
				}
			})
		})
	}
}

// When a call leaves the queue those behind go on, and a place in line is not given up.
func TestQueueCancellation(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r, late := newReplica(t, b), newReplica(t, b), newReplica(t, b)
		lock := acquire(t, holder.Locker, "k", holdfast.WithLabel("api"))
		var ctxs [4]context.CancelFunc
		var calls [4]<-chan result
		for i := range calls {
			var ctx context.Context
			ctx, ctxs[i] = context.WithCancel(background)
			calls[i] = call(ctx, r, "k")
		}
		behind := call(background, late, "k")
		time.Sleep(3 * time.Second)
		for _, i := range []int{2, 0} { // in the middle, and the one that stands in line for all
			ctxs[i]()
			res := <-calls[i]
			var held *holdfast.HeldError
			if !errors.As(res.err, &held) || !errors.Is(res.err, context.Canceled) || held.Label != "api" || held.TimeLeft <= 0 {
				t.Errorf("cancelled: %v", res.err)
			}
			synctest.Wait()
		}
		if s, err := r.Inspect(background, "k"); err != nil || s.Waiting != 2 {
			t.Errorf("%+v, %v: want two processes in line", s, err)
		}
		release(t, lock)
		next := got(t, calls[1])
		notLate(t, b, next)
		release(t, next)
		notYet(t, calls[3]) // the tenure began before anybody queued: its process goes to the end of the line
		release(t, got(t, behind))
		release(t, got(t, calls[3]))
		empty(t, b, holder, r, late)
		for _, cancel := range ctxs {
			cancel()
		}
	})
}

// Tokens are reserved for a tenure at the pace of the clock: tenures are handed over more often where that takes time, and not
// where their tokens would get ahead of the clock of Redis.
func TestTokensKeepThePaceOfTheClock(t *testing.T) {
	for _, c := range []struct {
		hold  time.Duration
		turns []int // of the first tenures; the very first call does not know of the others
	}{
		{0, []int{1, 65, 65, 65, 65}},
		{2 * time.Microsecond, []int{1, 65, 131, 251, 251}}, // 130 µs, 262 µs
		{time.Millisecond, []int{1, 100, 100, 100, 100}},    // then it was in the process for 100 ms
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			var mu sync.Mutex
			var turns []int
			last := ""
			var all sync.WaitGroup
			hold := func(lock *holdfast.Lock, err error) bool {
				if err != nil {
					t.Error(err)
					return false
				}
				mu.Lock()
				if owner := holdfast.Owner(lock); owner != last {
					turns, last = append(turns, 0), owner
				}
				turns[len(turns)-1]++
				mu.Unlock()
				return true
			}
			first, err := r.Acquire(background, "k")
			if !hold(first, err) {
				return
			}
			for range 16 {
				all.Go(func() {
					for range 50 {
						lock, err := r.Acquire(background, "k")
						if !hold(lock, err) {
							return
						}
						time.Sleep(c.hold)
						release(t, lock)
					}
				})
			}
			synctest.Wait() // all in line: no tenure ends because its process has nobody to hand it to
			time.Sleep(c.hold)
			release(t, first)
			all.Wait()
			if len(turns) < len(c.turns) || !slices.Equal(turns[:len(c.turns)], c.turns) {
				t.Errorf("holds of %v: tenures of %v, want them to begin with %v", c.hold, turns, c.turns)
			}
		})
	}
}
