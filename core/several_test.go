package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

var errWork = errors.New("work")

// keysOf are the keys of the locks that ctx carries, in the order in which they were taken.
func keysOf(ctx context.Context) (keys []string) {
	for _, lk := range holdfast.Held(ctx) {
		keys = append(keys, lk.Key())
	}
	slices.Reverse(keys)
	return keys
}

// Free locks are taken and released in one round trip each, whatever the order of the keys.
func TestDoAllOfFreeKeys(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		keys := []string{"c", "a", "b", "a"}
		r.link.Delay(time.Millisecond) // so that the three of a call need a connection each from the first call on
		for range 2 {                  // connections and scripts are there
			if err := r.DoAll(background, keys, func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		b.ResetCommands()
		began := time.Now()
		var ended context.Context
		err := r.DoAll(background, keys, func(ctx context.Context) error {
			if keys := keysOf(ctx); !slices.Equal(keys, []string{"a", "b", "c"}) {
				t.Error(keys)
			}
			if d := time.Since(began); d > 4*time.Millisecond {
				t.Errorf("taken after %v", d)
			}
			for _, lk := range holdfast.Held(ctx) {
				notLate(t, b, lk)
			}
			ended = ctx
			return errWork
		})
		if !errors.Is(err, errWork) || ended.Err() == nil {
			t.Error(err, ended.Err())
		}
		if d := time.Since(began); d > 6*time.Millisecond { // two round trips
			t.Errorf("it took %v", d)
		}
		r.link.Delay(0)
		if n := b.Commands().Total(); n > 6 {
			t.Errorf("%d commands for 3 keys: %v", n, b.Commands())
		}
		empty(t, b, r)
	})
}

// What is in front of the key that it waits for is held, what is behind it is not.
func TestDoAllHoldsWhatIsInFront(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		c := acquire(t, other.Locker, "c")
		e := acquire(t, other.Locker, "e")
		done := make(chan error, 1)
		go func() {
			done <- r.DoAll(background, []string{"e", "d", "c", "b", "a"}, func(ctx context.Context) error {
				if keys := keysOf(ctx); len(keys) != 5 {
					t.Error(keys)
				}
				return nil
			})
		}()
		held := func(want string) {
			t.Helper()
			time.Sleep(100 * time.Millisecond)
			got := ""
			for _, key := range []string{"a", "b", "c", "d", "e"} {
				if b.Redis.Exists(key) {
					got += key
				}
			}
			if got != want {
				t.Errorf("held are %s, want %s", got, want)
			}
		}
		held("abce")
		var told *holdfast.HeldError
		if _, err := other.TryAcquire(background, "a"); !errors.As(err, &told) {
			t.Error(err)
		}
		release(t, c)
		held("abcde")
		if state, err := other.Inspect(background, "e"); err != nil || state.Waiting != 1 {
			t.Errorf("%+v, %v", state, err)
		}
		release(t, e)
		if err := <-done; err != nil {
			t.Error(err)
		}
		held("")
		empty(t, b, r, other)
	})
}

// Calls that take keys in any order get through: nobody waits in a circle, and nothing is left behind.
func TestDoAllNeverWaitsInACircle(t *testing.T) {
	for seed := range seeds(t, 2) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			var rs []*replica
			for range 4 {
				rs = append(rs, newReplica(t, b))
			}
			var all sync.WaitGroup
			var mu sync.Mutex
			last := map[string]int64{}
			for i := range 12 {
				r, rnd := rs[i%4], rand.New(rand.NewPCG(seed, uint64(i)))
				all.Go(func() {
					for range 6 {
						keys := []string{"a", "b", "c", "d", "e"}
						rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
						ctx, cancel := context.WithTimeout(background, time.Minute)
						err := r.DoAll(ctx, keys[:2+rnd.IntN(3)], func(ctx context.Context) error {
							mu.Lock()
							for _, lk := range holdfast.Held(ctx) {
								if lk.Err() != nil || lk.Token() <= last[lk.Key()] {
									t.Errorf("token %d of %s after %d: %v", lk.Token(), lk.Key(), last[lk.Key()], lk.Err())
								}
								last[lk.Key()] = lk.Token()
							}
							mu.Unlock()
							time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
							return ctx.Err()
						})
						cancel()
						if err != nil {
							t.Errorf("seed %d: %v", seed, err)
						}
					}
				})
			}
			all.Wait()
			empty(t, b, rs...)
		})
	}
}

// A refusal takes one round trip, a command for each key, and names the first key that is held. What was had behind that one is
// given back behind the caller's back.
func TestDoAllThatIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		keys := []string{"a", "b", "c", "d"}
		r.link.Delay(time.Millisecond)
		for range 2 { // connections and scripts are there
			if err := r.DoAll(background, keys, func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		a, c := acquire(t, other.Locker, "a"), acquire(t, other.Locker, "c")
		b.ResetCommands()
		began := time.Now()
		err := r.DoAll(background, keys, func(context.Context) error { t.Error("it ran"); return nil }, holdfast.WithWait(0))
		if d := time.Since(began); d > 3*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		var told *holdfast.HeldError
		if !errors.As(err, &told) || told.Key != "a" {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if n := b.Commands().Total(); n > 6 {
			t.Errorf("%d commands, want 4 and 2 releases: %v", n, b.Commands())
		}
		if b.Redis.Exists("b") || b.Redis.Exists("d") {
			t.Error("something is left behind")
		}
		release(t, a)
		release(t, c)
		empty(t, b, r, other)
	})
}

// An outage takes DoAll no longer than it takes Acquire, and what it took counts as waiting.
func TestDoAllWithoutRedis(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errRefused)
		r.link.CutUp()
		took := func(call func() error) time.Duration {
			t.Helper()
			began := time.Now()
			if err := call(); !errors.Is(err, holdfast.ErrUnavailable) {
				t.Error(err)
			}
			return time.Since(began)
		}
		for _, wait := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
			one := took(func() error {
				_, err := r.Acquire(background, "a", holdfast.WithWait(wait))
				return err
			})
			all := took(func() error {
				never := func(context.Context) error { t.Error("it ran"); return nil }
				return r.DoAll(background, []string{"a", "b", "c"}, never, holdfast.WithWait(wait))
			})
			if all > one+500*time.Millisecond {
				t.Errorf("with a wait of %v it took %v, and Acquire %v", wait, all, one)
			}
		}
		r.link.Refuse(nil)
		r.link.Heal()
		empty(t, b, r)
	})
}

// An error names the key, and leaves nothing behind.
func TestDoAllThatFails(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		never := func(context.Context) error { t.Error("it ran"); return nil }
		keys := []string{"a", "b", "c"}
		held := acquire(t, other.Locker, "b", holdfast.WithTTL(time.Minute))
		var told *holdfast.HeldError
		gone := func() {
			t.Helper()
			synctest.Wait()
			if b.Redis.Exists("a") || b.Redis.Exists("c") {
				t.Error("something is left behind")
			}
		}
		for _, c := range []struct {
			opts []holdfast.CallOption
			d    time.Duration
		}{
			{[]holdfast.CallOption{holdfast.WithWait(0)}, 0},
			{[]holdfast.CallOption{holdfast.WithWait(3 * time.Second)}, 3 * time.Second},
			{[]holdfast.CallOption{holdfast.WithWait(time.Second), holdfast.WithTTL(time.Second), holdfast.WithReleaseInBackground()}, time.Second},
		} {
			began := time.Now()
			err := r.DoAll(background, keys, never, c.opts...)
			if d := time.Since(began); !errors.As(err, &told) || told.Key != "b" || d < c.d || d > c.d+50*time.Millisecond {
				t.Errorf("after %v: %v", d, err)
			}
			gone()
		}
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if err := r.DoAll(ctx, keys, never); !errors.As(err, &told) || !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(told.Holding, []string{"a"}) {
			t.Errorf("%v, %v", err, told)
		}
		gone()

		// One that it has is lost while it waits for another.
		done := make(chan error, 1)
		go func() { done <- r.DoAll(background, keys, never, holdfast.WithTTL(3*time.Second)) }()
		time.Sleep(time.Second)
		b.Redis.Del("a")
		if err := <-done; !errors.Is(err, holdfast.ErrLost) || !strings.Contains(err.Error(), `"a"`) || strings.Count(err.Error(), "lost") != 1 {
			t.Error(err)
		}
		gone()

		// One bound for all: the second wait has what the first has left.
		first := acquire(t, other.Locker, "a", holdfast.WithTTL(time.Minute))
		began := time.Now()
		go func() { done <- r.DoAll(background, keys, never, holdfast.WithWait(3*time.Second)) }()
		time.Sleep(2 * time.Second)
		release(t, first)
		if err := <-done; !errors.As(err, &told) || told.Key != "b" || time.Since(began) > 3100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		gone()
		release(t, held)

		r.link.Refuse(errRefused)
		r.link.CutUp()
		if err := r.DoAll(background, keys, never, holdfast.WithWait(0)); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Error(err)
		}
		r.link.Refuse(nil)
		r.link.Heal()
		empty(t, b, r, other)
		if err := r.DoAll(background, keys, never); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestDoAllOfBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		never := func(context.Context) error { t.Error("it ran"); return nil }
		many := make([]string, 65)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		var none context.Context
		for name, err := range map[string]error{
			"no key":    r.DoAll(background, nil, never),
			"too many":  r.DoAll(background, many, never),
			"empty key": r.DoAll(background, []string{"a", ""}, never),
			"no fn":     r.DoAll(background, []string{"a"}, nil),
			"no ctx":    r.DoAll(none, []string{"a"}, never),
			"limit":     r.DoAll(background, []string{"a"}, never, holdfast.WithLimit(0)),
		} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		ran := 0
		if err := r.DoAll(background, many[:64], func(context.Context) error { ran++; return nil }); err != nil || ran != 1 {
			t.Error(err, ran)
		}
		if err := r.DoAll(background, []string{"a", "a"}, func(context.Context) error { ran++; return nil }); err != nil || ran != 2 {
			t.Error(err, ran)
		}
		empty(t, b, r)
	})
}

// A key that ctx holds already is a deadlock, or nested.
func TestDoAllWithinItself(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		err := r.DoAll(background, []string{"a", "b"}, func(ctx context.Context) error {
			if err := r.DoAll(ctx, []string{"c", "b"}, func(context.Context) error { t.Error("it ran"); return nil }); !errors.Is(err, holdfast.ErrSelfDeadlock) || !strings.Contains(err.Error(), `"b"`) {
				t.Error(err)
			}
			err := r.DoAll(ctx, []string{"c", "b"}, func(ctx context.Context) error {
				if keys := keysOf(ctx); !slices.Equal(keys, []string{"a", "b", "c"}) && !slices.Equal(keys, []string{"a", "c", "b"}) && len(keys) != 3 {
					t.Error(keys)
				}
				return nil
			}, holdfast.WithReentrancy())
			if holdfast.Err(ctx) != nil {
				t.Error("the inner one released what the outer one has")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		empty(t, b, r)
	})
}

// A panic releases all, whether of fn or of a hook.
func TestDoAllThatPanics(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		try := func(opts ...holdfast.CallOption) (p any) {
			defer func() { p = recover() }()
			_ = r.DoAll(background, []string{"a", "b", "c"}, func(context.Context) error { panic("fn") }, opts...)
			return nil
		}
		released := func() { // at once: a lock that nobody can reach is not renewed for long
			t.Helper()
			synctest.Wait()
			for _, key := range []string{"a", "b", "c"} {
				if b.Redis.Exists(key) {
					t.Errorf("%s is left behind", key)
				}
			}
		}
		if p := try(); p != "fn" {
			t.Error(p)
		}
		released()
		hook := &holdfast.Trace{Acquired: func(e holdfast.Event) {
			if e.Key == "b" {
				panic("hook")
			}
		}}
		if p := try(holdfast.WithTrace(hook)); p != "hook" {
			t.Error(p)
		}
		released()
		empty(t, b, r)
	})
}

// fn's context ends when one of the locks is lost, and the error says which.
func TestDoAllThatLosesOne(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second))
		err := r.DoAll(background, []string{"a", "b", "c"}, func(ctx context.Context) error {
			b.Redis.Del("b")
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, holdfast.ErrLost) || !strings.Contains(cause.Error(), `"b"`) {
				t.Error(cause)
			}
			return nil
		})
		if !errors.Is(err, holdfast.ErrLost) || !strings.Contains(err.Error(), `"b"`) || strings.Contains(err.Error(), `"a"`) {
			t.Error(err)
		}
		err = r.DoAll(background, []string{"a", "b", "c"}, func(ctx context.Context) error {
			b.Redis.Del("a")
			b.Redis.Del("c")
			time.Sleep(3 * time.Second)
			return errWork
		})
		if !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, errWork) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"c"`) || strings.Contains(err.Error(), `"b"`) {
			t.Error(err)
		}
		empty(t, b, r)
	})
}

func TestDoAllOnSeveralMasters(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		one, two := ms.voter(t), ms.voter(t)
		var all sync.WaitGroup
		n := 0
		for _, keys := range [][]string{{"a", "b", "c"}, {"c", "b"}, {"b", "a"}, {"c", "a"}} {
			for _, v := range []*voter{one, two} {
				all.Go(func() {
					err := v.DoAll(background, keys, func(ctx context.Context) error {
						n++ // all have a key in common, two by two
						time.Sleep(10 * time.Millisecond)
						return ctx.Err()
					}, holdfast.WithWait(time.Minute))
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if n != 8 {
			t.Errorf("%d ran", n)
		}
	})
}
