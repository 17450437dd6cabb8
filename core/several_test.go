package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

func nothing(context.Context) error { return nil }

// never is a function that must not run.
func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error { t.Error("it ran"); return nil }
}

// Free locks are taken and released in one round trip each, whatever the order of the keys.
func TestDoAllOfFreeKeys(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		keys := []string{"c", "a", "b", "a"}
		r.link.Delay(time.Millisecond) // so that the three of a call need a connection each from the first call on
		for range 2 {                  // connections and scripts are there
			must(t, r.DoAll(background, keys, nothing))
		}
		b.ResetCommands()
		began := time.Now()
		var ended context.Context
		err := r.DoAll(background, keys, func(ctx context.Context) error {
			if keys := keysOf(ctx); !slices.Equal(keys, []string{"a", "b", "c"}) {
				t.Error(keys)
			}
			atMost(t, began, 4*time.Millisecond)
			for _, lk := range holdfast.Held(ctx) {
				notLate(t, b, lk)
			}
			ended = ctx
			return errWork
		})
		if wantIs(t, err, errWork); ended.Err() == nil {
			t.Error("the context goes on")
		}
		atMost(t, began, 6*time.Millisecond) // two round trips
		r.link.Delay(0)
		if n := b.Commands().Total(); n > 6 {
			t.Errorf("%d commands for 3 keys: %v", n, b.Commands())
		}
	})
}

// What is in front of the key that it waits for is held, what is behind it is not.
func TestDoAllHoldsWhatIsInFront(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		c, e := acquire(t, other.Locker, "c"), acquire(t, other.Locker, "e")
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
		release(t, c)
		held("abcde")
		if state, err := other.Inspect(background, "e"); err != nil || state.Waiting != 1 {
			t.Errorf("%+v, %v", state, err)
		}
		release(t, e)
		fine(t, <-done)
		held("")
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
						fine(t, err, "seed", seed)
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
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		keys := []string{"a", "b", "c", "d"}
		r.link.Delay(time.Millisecond)
		for range 2 { // connections and scripts are there
			must(t, r.DoAll(background, keys, nothing))
		}
		a, c := acquire(t, other.Locker, "a"), acquire(t, other.Locker, "c")
		b.ResetCommands()
		began := time.Now()
		err := r.DoAll(background, keys, never(t), holdfast.WithWait(0))
		atMost(t, began, 3*time.Millisecond)
		if told := refused(t, err); told.Key != "a" {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if n := b.Commands().Total(); n > 6 {
			t.Errorf("%d commands, want 4 and 2 releases: %v", n, b.Commands())
		}
		unheld(t, b, "b", "d")
		release(t, a)
		release(t, c)
	})
}

// An outage takes DoAll no longer than it takes Acquire, and what it took counts as waiting.
func TestDoAllWithoutRedis(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.Refuse(errRefused)
		r.link.CutUp()
		for _, wait := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
			began := time.Now()
			_, err := r.Acquire(background, "a", holdfast.WithWait(wait))
			wantIs(t, err, holdfast.ErrUnavailable)
			one := time.Since(began)
			began = time.Now()
			wantIs(t, r.DoAll(background, []string{"a", "b", "c"}, never(t), holdfast.WithWait(wait)), holdfast.ErrUnavailable)
			atMost(t, began, one+500*time.Millisecond)
		}
		r.link.Refuse(nil)
		r.link.Heal()
	})
}

// An error names the key, and leaves nothing behind.
func TestDoAllThatFails(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		keys := []string{"a", "b", "c"}
		held := acquire(t, other.Locker, "b", holdfast.WithTTL(time.Minute))
		fails := func(ctx context.Context, d time.Duration, opts ...holdfast.CallOption) (*holdfast.HeldError, error) {
			t.Helper()
			began := time.Now()
			err := r.DoAll(ctx, keys, never(t), opts...)
			told := refused(t, err)
			if took := time.Since(began); told.Key != "b" || took < d || took > d+100*time.Millisecond {
				t.Errorf("after %v, want %v: %v", took, d, err)
			}
			synctest.Wait()
			unheld(t, b, "a", "c")
			return told, err
		}
		fails(background, 0, holdfast.WithWait(0))
		fails(background, 3*time.Second, holdfast.WithWait(3*time.Second))
		fails(background, time.Second, holdfast.WithWait(time.Second), holdfast.WithTTL(time.Second), passing)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		told, err := fails(ctx, time.Second)
		if wantIs(t, err, context.DeadlineExceeded); !slices.Equal(told.Holding, []string{"a"}) {
			t.Error(told)
		}
		// One bound for all: the second wait has what the first has left.
		first := acquire(t, other.Locker, "a", holdfast.WithTTL(time.Minute))
		time.AfterFunc(2*time.Second, func() { release(t, first) })
		fails(background, 3*time.Second, holdfast.WithWait(3*time.Second))
		release(t, held)

		r.link.Refuse(errRefused)
		r.link.CutUp()
		wantIs(t, r.DoAll(background, keys, never(t), holdfast.WithWait(0)), holdfast.ErrUnavailable)
		r.link.Refuse(nil)
		r.link.Heal()
		empty(t, b, r)
		wantIs(t, r.DoAll(background, keys, never(t)), holdfast.ErrClosed)
	})
}

// What is lost while the call waits for another lock is taken again: fn runs once, when all are held. The call gives back
// what comes behind the lost lock, so that it still waits with smaller keys only.
func TestDoAllTakesAgainWhatIsLostWhileItWaits(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		held := acquire(t, other.Locker, "c")
		done := make(chan error, 1)
		go func() {
			done <- r.DoAll(background, []string{"d", "c", "b", "a"}, func(ctx context.Context) error {
				if keys := keysOf(ctx); !slices.Equal(slices.Sorted(slices.Values(keys)), []string{"a", "b", "c", "d"}) {
					t.Errorf("it runs with %v", keys)
				}
				return holdfast.Err(ctx)
			}, holdfast.WithTTL(3*time.Second))
		}()
		time.Sleep(500 * time.Millisecond)
		b.Redis.Del("a")
		taken := acquire(t, other.Locker, "a") // DoAll learns of it by its renewal
		time.Sleep(3 * time.Second)
		unheld(t, b, "b")
		release(t, taken)
		time.Sleep(time.Second)
		if !b.Redis.Exists("a") || !b.Redis.Exists("b") {
			t.Error("it did not take what it had lost")
		}
		release(t, held)
		fine(t, <-done)
	})
}

// Taken leaves out what was held before, by the call's own key or another.
func TestTakenLeavesOutWhatWasHeld(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		want := func(want ...string) func(context.Context) error {
			return func(ctx context.Context) error {
				var keys []string
				for _, lock := range holdfast.Taken(ctx) {
					keys = append(keys, lock.Key())
				}
				if !slices.Equal(keys, want) {
					t.Errorf("got %q, want %q", keys, want)
				}
				return nil
			}
		}
		reentrant := holdfast.WithReentrancy()
		fine(t, want()(background))
		fine(t, r.DoAll(background, []string{"b", "c"}, func(ctx context.Context) error {
			return errors.Join(
				want("b", "c")(ctx),
				r.Do(ctx, "x", want("x")),
				r.Do(ctx, "b", want(), reentrant),
				r.DoAll(ctx, []string{"d", "c", "a"}, want("a", "d"), reentrant),
				r.DoAll(ctx, []string{"c", "b"}, want(), reentrant),
			)
		}))
	})
}

func TestDoAllOfBadInput(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		many := make([]string, 65)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		var none context.Context
		for name, err := range map[string]error{
			"no key":    r.DoAll(background, nil, never(t)),
			"too many":  r.DoAll(background, many, never(t)),
			"empty key": r.DoAll(background, []string{"a", ""}, never(t)),
			"no fn":     r.DoAll(background, []string{"a"}, nil),
			"no ctx":    r.DoAll(none, []string{"a"}, never(t)),
			"limit":     r.DoAll(background, []string{"a"}, never(t), holdfast.WithLimit(0)),
		} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, keys := range [][]string{many[:64], {"a", "a"}} {
			ran := 0
			if err := r.DoAll(background, keys, func(context.Context) error { ran++; return nil }); err != nil || ran != 1 {
				t.Errorf("%d keys: %v, ran %d times", len(keys), err, ran)
			}
		}
	})
}

// A key that ctx holds already is a deadlock, or nested.
func TestDoAllWithinItself(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		fine(t, r.DoAll(background, []string{"a", "b"}, func(ctx context.Context) error {
			err := r.DoAll(ctx, []string{"c", "b"}, never(t))
			if wantIs(t, err, holdfast.ErrSelfDeadlock); !contains(err, `"b"`) {
				t.Error(err)
			}
			err = r.DoAll(ctx, []string{"c", "b"}, func(ctx context.Context) error {
				if keys := keysOf(ctx); len(keys) != 3 {
					t.Error(keys)
				}
				return nil
			}, holdfast.WithReentrancy())
			return errors.Join(err, holdfast.Err(ctx)) // the inner one released nothing that the outer one has
		}))
	})
}

// A panic releases all at once, whether of fn or of a hook: a lock that nobody can reach is not renewed for long.
func TestDoAllThatPanics(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		hook := &holdfast.Trace{Acquired: func(e holdfast.Event) {
			if e.Key == "b" {
				panic("hook")
			}
		}}
		for want, opts := range map[string][]holdfast.CallOption{"fn": nil, "hook": {holdfast.WithTrace(hook)}} {
			func() {
				defer func() {
					if p := recover(); p != want {
						t.Errorf("recovered %v, want %s", p, want)
					}
				}()
				_ = r.DoAll(background, []string{"a", "b", "c"}, func(context.Context) error { panic("fn") }, opts...)
			}()
			synctest.Wait()
			unheld(t, b, "a", "b", "c")
		}
	})
}

// fn's context ends when one of the locks is lost, and the error says which.
func TestDoAllThatLosesOne(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		names := func(err error, lost, held string) {
			t.Helper()
			if wantIs(t, err, holdfast.ErrLost); !contains(err, lost) || contains(err, held) {
				t.Error(err)
			}
		}
		names(r.DoAll(background, []string{"a", "b", "c"}, func(ctx context.Context) error {
			b.Redis.Del("b")
			<-ctx.Done()
			names(context.Cause(ctx), `"b"`, `"a"`)
			return nil
		}), `"b"`, `"a"`)
		err := r.DoAll(background, []string{"a", "b", "c"}, func(context.Context) error {
			b.Redis.Del("a")
			b.Redis.Del("c")
			time.Sleep(3 * time.Second)
			return errWork
		})
		names(err, `"a"`, `"b"`)
		names(err, `"c"`, `"b"`)
		wantIs(t, err, errWork)
	}, holdfast.WithTTL(3*time.Second))
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
					fine(t, err)
				})
			}
		}
		all.Wait()
		if n != 8 {
			t.Errorf("%d ran", n)
		}
	})
}
